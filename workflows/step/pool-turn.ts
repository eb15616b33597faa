import { condition, workflowInfo } from '@temporalio/workflow';
import { queuePriorityOf } from '../../core/fleet/rollout-turns.ts';
import type { RunStanding, TurnNotice } from '../../core/fleet/pool-types.ts';
import type { QueueSpec } from '../../config/run-spec.ts';
import { awaitedLater } from '../beside/beside.ts';
import { onSignal } from '../control/listen.ts';
import { turnSignal } from '../control/pool-messages.ts';
import type { RunControl } from '../control/run-control.ts';
import { eager } from '../options.ts';

/** Carried by continue-as-new: the turn goes on. */
export interface CarriedTurn {
  readonly turn: number;
  readonly trainer: string | null;
  readonly giveBack: string | null;
}

/**
 * A run's turn with a trainer of its pool. The run always tells its whole standing, and the pool answers with the turn
 * as it has it: so what one of them missed is said again.
 */
export class PoolTurn {
  readonly #queue: QueueSpec;
  readonly #control: RunControl;
  #turn: number;
  #trainer: string | null;
  #giveBack: string | null;
  #isWanted = false;
  #lost: string | null = null;
  #told = 0;
  #telling: Promise<void> = Promise.resolve();
  /** Ends when the trainer that was given back has let go of the run, and the pool has heard of it. */
  #leaving: Promise<void> = Promise.resolve();
  /** Called when the pool wants the trainer back. */
  onAskedBack: (why: string) => void = () => undefined;

  constructor(queue: QueueSpec, control: RunControl, carried: CarriedTurn | null) {
    this.#queue = queue;
    this.#control = control;
    this.#turn = carried?.turn ?? 0;
    this.#trainer = carried?.trainer ?? null;
    this.#giveBack = carried?.giveBack ?? null;
    onSignal(
      turnSignal,
      (notice) => this.#hear(notice),
      (problem) => control.ignored(problem),
    );
  }

  get pool(): string {
    return this.#queue.pool;
  }

  get trainer(): string | null {
    return this.#trainer;
  }

  get isAskedBack(): boolean {
    return this.#trainer !== null && this.#giveBack !== null;
  }

  carry(): CarriedTurn {
    return { turn: this.#turn, trainer: this.#trainer, giveBack: this.#giveBack };
  }

  /** The trainer of the run's turn; waits until it has one. */
  async get(): Promise<string> {
    await this.#leaving;
    if (this.#trainer === null) {
      this.#isWanted = true;
      await this.tell();
      await condition(() => this.#trainer !== null);
    }
    return this.#trainer!;
  }

  /** Gives the trainer back once its lease is `over`. `isLost`: it did not answer, and others are not to get it. */
  giveBack(over: Promise<unknown>, { isLost = false } = {}): void {
    this.#leaving = awaitedLater(
      this.#leaving.then(async () => {
        await over;
        if (isLost) this.#lost = this.#trainer;
        [this.#trainer, this.#giveBack, this.#isWanted] = [null, null, false];
        await this.tell();
      }),
    );
  }

  /** The run ends. */
  async leave(): Promise<void> {
    await this.#leaving;
    if (this.#turn === 0 && this.#told === 0) return; // the pool has never heard of it
    [this.#trainer, this.#giveBack, this.#isWanted] = [null, null, false];
    await this.tell();
  }

  /** Tells the pool how the run stands by then; one telling after the other. */
  tell(): Promise<void> {
    this.#telling = awaitedLater(this.#telling.catch(() => undefined).then(() => this.#send()));
    return this.#telling;
  }

  async #send(): Promise<void> {
    const { pool, team, labels, startAt } = this.#queue;
    const priority = queuePriorityOf(this.#queue, this.#control.overrides);
    this.#told = Math.max(this.#told + 1, Date.now());
    const standing: RunStanding = {
      run: workflowInfo().workflowId,
      told: this.#told,
      team,
      priority,
      labels,
      startAt: startAt === null ? null : Date.parse(startAt),
      turn: this.#turn,
      state: this.#trainer !== null ? 'holds' : this.#isWanted ? 'waits' : 'none',
      trainer: this.#trainer,
      lost: this.#lost,
      store: this.#control.storeUri,
    };
    this.#lost = null;
    await eager.tellStanding({ pool, standing });
  }

  #hear({ turn, trainer, giveBack, asks }: TurnNotice): void {
    const isNew = turn > this.#turn;
    if (turn < this.#turn) return;
    this.#turn = turn;
    const isOwn = this.#trainer === trainer || (isNew && this.#isWanted && this.#trainer === null);
    if (isOwn) [this.#trainer, this.#isWanted] = [trainer, false];
    // It was given while nothing was wanted any more, or before the run gave it back.
    if (asks || !isOwn) void this.tell();
    if (!isOwn || giveBack === this.#giveBack) return;
    this.#giveBack = giveBack;
    if (giveBack !== null) this.onAskedBack(giveBack);
  }
}
