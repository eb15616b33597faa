import { setTimeout as delay } from 'node:timers/promises';
import { activityInfo } from '@temporalio/activity';
import type { ActivityExecuteInput, ActivityInboundCallsInterceptor } from '@temporalio/worker';
import { RatchetError } from '../../core/errors.ts';
import type { RunHandle } from '../../core/rl/run-state.ts';

/** A GPU worker that is to end begins no training any more; it still uploads trained versions. */
const beginnings = new Set(['warmUp', 'trainBatch', 'restoreVersion']);
/** An upload is asked for right after its step: when nothing was for so long, nothing more comes. */
const quietMs = 3_000;

/** One more step begins if the rest of the grace is this many times what the last step took. */
const roomForStep = 1.5;

/** A step that made a version. */
export interface StepTrained {
  /** The run, by its place in the store. */
  readonly owner: string;
  /** The version has its optimizer's state. */
  readonly snapshot: boolean;
  readonly seconds: number;
}

/**
 * How a GPU worker comes to its end: it finishes the step that it is in, with a checkpoint, and uploads it. Where the
 * newest version has no checkpoint, another trainer would train the steps since the last one again. So it waits for one
 * more step, no longer than those steps took, where that step ends within the grace.
 */
export class TrainerDrain implements ActivityInboundCallsInterceptor {
  readonly #underWay = new Map<symbol, string>();
  readonly #quietMs: number;
  /** Seconds of the run's steps since its last checkpoint, and of the newest of them. */
  #unsealedS = 0;
  #lastS = 0;
  #owner: string | null = null;
  #endsAt = Infinity;
  readonly #done: Promise<void>;
  #finish: () => void = () => undefined;
  #isDraining = false;
  #isAskedForMore = false;
  #quiet: NodeJS.Timeout | undefined;

  constructor(options: { readonly quietMs?: number } = {}) {
    this.#quietMs = options.quietMs ?? quietMs;
    this.#done = new Promise((resolve) => (this.#finish = resolve));
  }

  async execute(
    input: ActivityExecuteInput,
    next: (input: ActivityExecuteInput) => Promise<unknown>,
  ): Promise<unknown> {
    const { activityType } = activityInfo();
    if (this.#isDraining && beginnings.has(activityType) && !(activityType === 'trainBatch' && this.#mayStillTrain())) {
      this.#isAskedForMore = true;
      this.#look();
      throw new RatchetError(
        'TrainerDetached',
        `This GPU worker ends, and begins no ${activityType}: another one does.`,
      );
    }
    const [first] = input.args as [{ run?: RunHandle } | undefined];
    const key = Symbol(activityType);
    this.#underWay.set(key, first?.run === undefined ? activityType : `${activityType} of ${first.run.name}`);
    clearTimeout(this.#quiet);
    try {
      return await next(input);
    } finally {
      this.#underWay.delete(key);
      this.#look();
    }
  }

  get isDraining(): boolean {
    return this.#isDraining;
  }

  trained({ owner, snapshot, seconds }: StepTrained): void {
    const before = this.#owner === owner ? this.#unsealedS : 0;
    this.#unsealedS = snapshot ? 0 : before + seconds;
    this.#lastS = seconds;
    this.#owner = owner;
  }

  /**
   * Begins nothing from now on, except a step that makes a missing checkpoint of the run that holds the process. Resolves
   * when work under way is done, or after the grace with what is still under way.
   */
  async drain(graceMs: number, { isHeld = true } = {}): Promise<readonly string[]> {
    this.#isDraining = true;
    if (!isHeld) this.#unsealedS = 0;
    this.#endsAt = performance.now() + graceMs;
    this.#look();
    const waiting = new AbortController();
    const over = delay(graceMs, undefined, { signal: waiting.signal }).catch(() => undefined); // done sooner
    await Promise.race([this.#done, over]);
    waiting.abort();
    clearTimeout(this.#quiet);
    return [...this.#underWay.values()];
  }

  #look(): void {
    if (!this.#isDraining || this.#underWay.size > 0) return;
    clearTimeout(this.#quiet);
    if (this.#isAskedForMore) this.#finish();
    else this.#quiet = setTimeout(this.#finish, Math.max(this.#quietMs, this.#msForOneMore()));
  }

  #mayStillTrain(): boolean {
    return this.#unsealedS > 0 && this.#msLeftToBegin() > 0;
  }

  /** How long a step is waited for that makes the missing checkpoint. */
  #msForOneMore(): number {
    return Math.min(this.#unsealedS * 1000, Math.max(0, this.#msLeftToBegin()));
  }

  #msLeftToBegin(): number {
    return this.#endsAt - performance.now() - roomForStep * this.#lastS * 1000;
  }
}
