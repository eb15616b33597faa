import { timeMetrics } from '../../core/rl/effectiveness.ts';
import { addLost, lostMetrics, nothingLost, type LostWork } from '../../core/rl/lost-work.ts';

/** What the account carries over continue-as-new. */
export interface CarriedAccount {
  readonly lost: LostWork;
  readonly pausedS: number;
  /** Since the run was opened. */
  readonly total: LostWork;
}

/** What has been lost and how long the run stood still since the last commit: the next one says so. */
export class StepAccount {
  #lost: LostWork;
  #total: LostWork;
  #pausedS: number;
  /** The lease whose worker was lost last, and how long what was asked of it took to be asked again. */
  #lostLease: { readonly epoch: number; readonly seconds: number } | null = null;
  /** A trainer that is lost, or whose run is started again, restores for the same step: that is one recovery. */
  #isRestoreCounted = false;

  constructor(carried?: CarriedAccount) {
    this.#lost = carried?.lost ?? nothingLost;
    this.#total = carried?.total ?? nothingLost;
    this.#pausedS = carried?.pausedS ?? 0;
  }

  /** Since the run was opened, whatever has been committed of it. */
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

  /** The run was started again before it had reached its end. What was under way then is not known any more. */
  startedAgain(): void {
    this.add({ ...nothingLost, recoveries: 1 });
    this.#isRestoreCounted = true;
  }

  /** Everything that was asked of a lost worker reports it; they were lost together. */
  workerLost(epoch: number, seconds: number): void {
    const told = this.#lostLease?.epoch === epoch ? this.#lostLease.seconds : null;
    this.add({ ...nothingLost, recoveries: told === null ? 1 : 0, seconds: Math.max(0, seconds - (told ?? 0)) });
    this.#lostLease = { epoch, seconds: Math.max(seconds, told ?? 0) };
    this.#isRestoreCounted = true;
  }

  /** Attempts of a train step that came to nothing: the trainer's process died, or was too late. */
  attemptsLost(lost: LostWork): void {
    this.add(lost);
    this.#isRestoreCounted ||= lost.recoveries > 0;
  }

  /** A trainer loaded a checkpoint and trained stored batches again. */
  restored(seconds: number): void {
    this.add({ ...nothingLost, recoveries: this.#isRestoreCounted ? 0 : 1, seconds });
    this.#isRestoreCounted = false;
  }

  /** As metrics of the commit that is made now; then it is empty. */
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
