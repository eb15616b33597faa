import type { Policy } from '../types.ts';

/** Deadlines of a program's calls, in seconds; null = none. */
interface CallDeadlines {
  readonly turnTimeoutS: number | null;
  readonly toolTimeoutS: number | null;
}

/** Begun with a call, and done before its answer leaves. */
type Beside = () => Promise<void>;

/** Why a program is stopped by its calls. */
export type CallsOver = 'turn' | 'tool';

/**
 * The policy of a program, with a clock: one call may take `turn_timeout`, and the program `tool_timeout` between an
 * answer and its next call. `over` is raised with the deadline that passed.
 */
export class WatchedPolicy implements Policy {
  readonly #policy: Policy;
  readonly #deadlines: CallDeadlines;
  readonly #over = new AbortController();
  #underWay = 0;
  #idle: NodeJS.Timeout | undefined;
  /** Calls that were made, answered or not. */
  calls = 0;

  readonly #beside: Beside | undefined;

  constructor(policy: Policy, deadlines: CallDeadlines, beside?: Beside) {
    this.#policy = policy;
    this.#deadlines = deadlines;
    this.#beside = beside;
    if (policy.keep) this.keep = (ids) => policy.keep!(ids);
    if (policy.tokenTexts) this.tokenTexts = (tokenIds) => policy.tokenTexts!(tokenIds);
    if (policy.countTokens) this.countTokens = (...asked) => policy.countTokens!(...asked);
  }

  declare readonly keep?: NonNullable<Policy['keep']>;
  declare readonly tokenTexts?: NonNullable<Policy['tokenTexts']>;
  declare readonly countTokens?: NonNullable<Policy['countTokens']>;

  get earlier(): NonNullable<Policy['earlier']> {
    return this.#policy.earlier ?? [];
  }

  /** Raised with a {@link CallsOver} as its reason. */
  get over(): AbortSignal {
    return this.#over.signal;
  }

  /** The program runs from now on. */
  begin(): void {
    this.#wait();
  }

  end(): void {
    clearTimeout(this.#idle);
  }

  async sample(...[messages, options]: Parameters<Policy['sample']>): ReturnType<Policy['sample']> {
    this.calls += 1;
    this.#underWay += 1;
    clearTimeout(this.#idle);
    const late = this.#after(this.#deadlines.turnTimeoutS, 'turn');
    try {
      // Both have ended before the program hears anything: a refusal lets it go on, too.
      const beside = this.#beside?.();
      const sampling = this.#policy.sample(messages, options).finally(() => clearTimeout(late));
      await Promise.allSettled([sampling, beside]);
      await beside;
      return await sampling;
    } finally {
      this.#underWay -= 1;
      if (this.#underWay === 0) this.#wait();
    }
  }

  #wait(): void {
    clearTimeout(this.#idle);
    this.#idle = this.#after(this.#deadlines.toolTimeoutS, 'tool');
  }

  #after(seconds: number | null, why: CallsOver): NodeJS.Timeout | undefined {
    return seconds === null ? undefined : setTimeout(() => this.#over.abort(why), seconds * 1000);
  }
}
