import type { RunSpec } from '../../config/run-spec.ts';
import type { PlayedPart } from '../../core/rl/rollout/played-part.ts';
import { batchSizeOf, rolloutsPerGroup } from '../../core/rl/learning/selection.ts';
import {
  batchesRemembered,
  issuedPerBatch,
  type JudgedGroups,
  judgedLately,
  partsRemembered,
  slowPlayS,
  type SampledBatch,
} from '../../core/rl/sampling/window.ts';
import {
  chunkGroupsOf,
  groupsUnderWay,
  isQuick,
  type SamplingMeasured,
  slowestOf,
  windowRoom,
  type WindowRoom,
} from '../../core/rl/sampling/window-room.ts';
import type { GateRoom } from './chunk-gate.ts';

/** Steps that may be sampled for, from `StepsAhead`. */
interface Ahead {
  readonly left: number;
  readonly toEnd: number;
  readonly within: number;
}

/** Decides how many groups may be in flight, from what was measured of this run. */
export class WindowSize {
  readonly #spec: RunSpec;
  readonly #playS: number[] = [];
  readonly #occupancies: number[] = [];
  readonly #batches: SampledBatch[] = [];
  /** Filter results of the newest groups. */
  #judged: readonly JudgedGroups[] = [];
  #batchS: number | null = null;
  #batchAt = Date.now();
  /** Groups of a batch; an estimate for a batch counted in tokens. */
  #groupsPerBatch: number;
  /** Groups that may be in flight. */
  #size: number;
  #utilisation: number | null = null;
  /** Rollout workers that share the run. */
  workers = 1;

  /** `playS`: seconds measured in the previous execution; null: none. */
  constructor(spec: RunSpec, playS: number | null) {
    this.#spec = spec;
    this.#groupsPerBatch = batchSizeOf(spec).groups;
    this.#size = this.#groupsPerBatch;
    // Programs take minutes, so their first round has the chunks of slow rollouts: one that dies takes few others along.
    const isProgram = spec.environments.some(({ program }) => program !== undefined);
    const supposedS = playS ?? (isProgram ? slowPlayS : null);
    if (supposedS !== null) this.#playS.push(supposedS);
  }

  /** Seconds that the slowest of the newest chunks took; null while none has ended. */
  get playS(): number | null {
    return slowestOf(this.#playS);
  }

  /** Whether chunks are known to take less time than slow ones. */
  get isQuick(): boolean {
    return isQuick(this.playS);
  }

  get groupsPerBatch(): number {
    return this.#groupsPerBatch;
  }

  /** Mean share of the window that was in flight while the newest batch was sampled; null when no time went by. */
  get utilisation(): number | null {
    return this.#utilisation;
  }

  /** Most groups in a chunk when so many groups are to be in flight. */
  chunkGroups(window: number): number {
    return chunkGroupsOf(this.#spec, this.#measured, { groupsPerBatch: this.#groupsPerBatch, window });
  }

  /** What is to be under way at once: a chunk for each worker, and groups for the rollouts that may be in flight. */
  get atOnce(): GateRoom {
    const spec = { ...this.#spec, rolloutsPerExample: rolloutsPerGroup(this.#spec) };
    return { chunks: this.workers, groups: groupsUnderWay(spec, this.#measured) ?? Infinity };
  }

  /** Groups issued for a batch, including those that a filter will drop. */
  get issuedPerBatch(): number {
    return issuedPerBatch(this.#groupsPerBatch, this.#judged, this.#spec.batchFill);
  }

  /** How many groups may be leased for this step's batch and later ones. */
  room(groupsPerBatch: number, step: number, ahead: Ahead): WindowRoom {
    this.#groupsPerBatch = groupsPerBatch;
    const spec = { ...this.#spec, rolloutsPerExample: rolloutsPerGroup(this.#spec) };
    const room = windowRoom(spec, this.#measured, { step, groupsPerBatch, ...ahead });
    this.#size = room.window;
    return room;
  }

  measure({ generateS, occupancy }: Pick<PlayedPart, 'generateS' | 'occupancy'>): void {
    remember(this.#playS, generateS, partsRemembered);
    if (occupancy !== null) remember(this.#occupancies, occupancy, partsRemembered);
  }

  /** Records the share of ended groups that the filter kept. */
  judged(of: JudgedGroups): void {
    this.#judged = judgedLately(this.#judged, of, this.#groupsPerBatch);
  }

  /** Measures a batch that was taken; `groupMs`: groups in flight × ms since the one before. */
  measureBatch(groupMs: number): void {
    const now = Date.now();
    const ms = now - this.#batchAt;
    this.#batchS = ms / 1000;
    const whole = this.#size * ms;
    this.#utilisation = whole === 0 ? null : groupMs / whole;
    if (ms > 0) remember(this.#batches, { inPlay: groupMs / ms, seconds: ms / 1000 }, batchesRemembered);
    this.#batchAt = now;
  }

  get #measured(): SamplingMeasured {
    return {
      playS: this.#playS,
      occupancies: this.#occupancies,
      batches: this.#batches,
      batchS: this.#batchS,
      judged: this.#judged,
      workers: this.workers,
    };
  }
}

function remember<T>(values: T[], value: T, most: number): void {
  values.push(value);
  if (values.length > most) values.shift();
}
