import { setTimeout as delay } from 'node:timers/promises';
import { activityInfo } from '@temporalio/activity';
import type { ActivityExecuteInput, ActivityInboundCallsInterceptor } from '@temporalio/worker';
import { RatchetError } from '../../core/errors.ts';
import type { RunHandle } from '../../core/rl/run-state.ts';

/** A GPU worker that is to end begins no training any more; it still uploads trained versions. */
const beginnings = new Set(['warmUp', 'trainBatch', 'restoreVersion']);
/** An upload is asked for right after its step: when nothing was for so long, nothing more comes. */
const quietMs = 3_000;

/** How a GPU worker comes to its end: it finishes the step that it is in, and uploads it. */
export class TrainerDrain implements ActivityInboundCallsInterceptor {
  readonly #underWay = new Map<symbol, string>();
  readonly #quietMs: number;
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
    if (this.#isDraining && beginnings.has(activityType)) {
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

  /**
   * Begins nothing from now on. Resolves when work under way is done, or after the grace with what is still under way.
   */
  async drain(graceMs: number): Promise<readonly string[]> {
    this.#isDraining = true;
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
    else this.#quiet = setTimeout(this.#finish, this.#quietMs);
  }
}
