import { timeMetrics } from '../../core/rl/effectiveness.ts';
import { addLost, lostMetrics, nothingLost, type LostWork } from '../../core/rl/lost-work.ts';

/** Carried by continue-as-new. */
export interface CarriedAccount {
  readonly lost: LostWork;
  readonly pausedS: number;
  /** Since the run was opened. */
  readonly total: LostWork;
}

/** Lost work and paused time since the last commit, for the metrics of the next one. */
export class StepAccount {
  #lost: LostWork;
  #total: LostWork;
  #pausedS: number;
  /** The lease whose worker was lost last, and how long its work took to be scheduled again. */
  #lostLease: { readonly epoch: number; readonly seconds: number } | null = null;
  /** Restores for the same step, by a lost trainer or a restarted run, count as one recovery. */
  #isRestoreCounted = false;

  constructor(carried?: CarriedAccount) {
    this.#lost = carried?.lost ?? nothingLost;
    this.#total = carried?.total ?? nothingLost;
    this.#pausedS = carried?.pausedS ?? 0;
  }

  /** Losses since the run was opened, committed or not. */
  get total(): LostWork {
    return this.#total;
  }

  add(lost: LostWork): void {
    this.#lost = addLost(this.#lost, lost);
    this.#total = addLost(this.#total, lost);
  }

  stoodStill(seconds: number): void {
    this.#pausedS += seconds;
  }

  /** The run was restarted before its end. Work under way then is unknown. */
  startedAgain(): void {
    this.add({ ...nothingLost, recoveries: 1 });
    this.#isRestoreCounted = true;
  }

  /** All work on a lost worker reports the loss, which counts once. */
  workerLost(epoch: number, seconds: number): void {
    const told = this.#lostLease?.epoch === epoch ? this.#lostLease.seconds : null;
    this.add({ ...nothingLost, recoveries: told === null ? 1 : 0, seconds: Math.max(0, seconds - (told ?? 0)) });
    this.#lostLease = { epoch, seconds: Math.max(seconds, told ?? 0) };
    this.#isRestoreCounted = true;
  }

  /** Attempts of a train step without a result: the trainer's process died, or was too late. */
  attemptsLost(lost: LostWork): void {
    this.add(lost);
    this.#isRestoreCounted ||= lost.recoveries > 0;
  }

  /** A trainer loaded a checkpoint and trained stored batches again. */
  restored(seconds: number): void {
    this.add({ ...nothingLost, recoveries: this.#isRestoreCounted ? 0 : 1, seconds });
    this.#isRestoreCounted = false;
  }

  /** Returns the account as metrics of the present commit, and empties it. */
  take(): Record<string, number> {
    const paused = this.#pausedS > 0 ? { [timeMetrics.paused]: this.#pausedS } : {};
    const metrics = { ...lostMetrics(this.#lost), ...paused };
    [this.#lost, this.#pausedS, this.#isRestoreCounted] = [nothingLost, 0, false];
    return metrics;
  }

  carry(): CarriedAccount {
    return { lost: this.#lost, pausedS: this.#pausedS, total: this.#total };
  }
}
