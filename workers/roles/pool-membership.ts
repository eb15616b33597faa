import { setTimeout as delay } from 'node:timers/promises';
import type { Client } from '@temporalio/client';
import { askOpenPool, tellPool } from '../../activities/around/tell-pool.ts';
import type { KeptSettings, KnownTrainer, TrainerStanding } from '../../core/fleet/pool-types.ts';
import { poolHolderQueryName, trainerStandingSignalName } from '../../core/names.ts';
import { present } from '../../core/present.ts';
import type { JoinedPool } from './joined-pool.ts';
import type { ProcessLease } from '../../activities/around/process-lease.ts';

/** Interval between looks at whether the pool has this trainer as it is. A query leaves nothing in the pool's history. */
const lookMs = 10_000;
/** Trainers of a pool that look at this interval; more of them look less often, so that its workflow answers as many. */
const trainersOfLook = 100;
/** Time for telling the pool that this process ends. */
const leaveMsMax = 1_000;

/**
 * A GPU worker's place in a pool. It joins, and looks again and again whether the pool knows it, and whom it is held
 * by: so a pool that was begun anew, or took it for lost, hears of it by itself. It keeps the pool's settings, and a pool
 * that was begun anew has them from it.
 */
export class PoolMembership {
  readonly #client: () => Client;
  readonly #joined: JoinedPool;
  readonly #lease: ProcessLease;
  readonly #say: (line: string) => void;
  readonly #end = new AbortController();
  /** The look before found the pool to have another holder: it may only be on its way. */
  #isDoubted = false;
  #trouble: string | null = null;
  #kept: KeptSettings | undefined;
  #trainers = 1;

  constructor(options: {
    readonly client: () => Client;
    readonly joined: JoinedPool;
    readonly lease: ProcessLease;
    readonly say: (line: string) => void;
  }) {
    this.#client = options.client;
    this.#joined = options.joined;
    this.#lease = options.lease;
    this.#say = options.say;
  }

  /** Looks until `leave`. */
  async stay(everyMs = lookMs): Promise<void> {
    const { signal } = this.#end;
    while (!signal.aborted) {
      try {
        await this.#look();
        this.#trouble = null;
      } catch (error) {
        const why = error instanceof Error ? error.message : String(error);
        if (why !== this.#trouble) this.#say(`the pool ${this.#joined.pool} does not answer: ${why}`);
        this.#trouble = why;
      }
      await delay(everyMs * Math.max(1, this.#trainers / trainersOfLook), undefined, { signal }).catch(() => undefined); // it leaves
    }
  }

  /** Tells the pool that this process takes no run any more. A pool that does not hear of it finds out by itself. */
  async leave(): Promise<void> {
    if (this.#end.signal.aborted) return;
    this.#end.abort();
    const late = delay(leaveMsMax, undefined, { ref: false });
    await Promise.race([this.#tell(true), late]).catch((error: unknown) =>
      this.#say(`the pool ${this.#joined.pool} was not told that this worker ends: ${String(error)}`),
    );
  }

  async #look(): Promise<void> {
    const { pool } = this.#joined;
    const { holder, heldBy } = this.#lease;
    const known = await askOpenPool<KnownTrainer, [string]>(this.#client(), pool, poolHolderQueryName, holder);
    if (this.#end.signal.aborted) return; // a pool that has heard of the end does not know it any more
    this.#kept = known?.kept ?? this.#kept;
    this.#trainers = known?.trainers ?? 1;
    const isOther = known !== null && known.heldBy !== heldBy && this.#lease.heldBy === heldBy;
    if (known === null || (isOther && this.#isDoubted)) await this.#tell(false);
    this.#isDoubted = isOther;
  }

  #tell(leaves: boolean): Promise<void> {
    const { pool, labels } = this.#joined;
    const { holder: trainer, heldBy } = this.#lease;
    const standing: TrainerStanding = { trainer, labels, heldBy, leaves, ...present({ kept: this.#kept }) };
    return tellPool(this.#client(), pool, trainerStandingSignalName, standing);
  }
}
