import { setMaxListeners } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import { searchFigures, tellings } from '../../core/gepa/figures.ts';
import { comparedOnTest, isQuick, type SearchPace } from '../../core/gepa/leases.ts';
import type {
  HeldOutScores,
  PromptSearchEvent,
  PromptSearchHandle,
  SearchFigures,
  SearchAttempt,
  SearchAttemptInput,
} from '../../core/gepa/prompt-search.ts';
import { next, settle } from '../../core/gepa/search.ts';
import type {
  EvaluateRequest,
  ReflectRequest,
  SearchAnswer,
  SearchRequest,
  SearchState,
  Texts,
} from '../../core/gepa/search-state.ts';
import { searchAnswersMax, searchDrainMs, searchAttemptMs, searchAttemptRequests } from '../../core/limits.ts';
import { slowPlayS } from '../../core/rl/window.ts';
import type { AskDependencies } from '../../backends/rollouts/asked-model.ts';
import { keepVersion } from '../../backends/rollouts/evaluated-policy.ts';
import { isShutdown, withHeartbeat } from '../around/heartbeat.ts';
import { OpenedSearch } from '../../backends/rollouts/opened-search.ts';
import { storedSearch } from '../../runs/search-store.ts';

/** What an attempt's heartbeats say, for whoever watches. */
export interface SearchProgress {
  readonly figures: SearchFigures;
  /** The newest things that happened in it, with the numbers that its workflow will give them counted from its beginning. */
  readonly told: readonly (Pick<PromptSearchEvent, 'kind' | 'text' | 'values'> & { readonly number: number })[];
  readonly failed: number;
  /** Events that were told before it. */
  readonly begunAt: number;
}

const toldInHeartbeats = 8;

/** How often a request that is under way is looked at. A process that stood still between two looks waited for no server. */
const lookMs = 250;

/**
 * Takes a search on for a while: answers what it asks for, and everything that follows from the answers. Its workflow takes the same
 * way from the answers that come back. Each of them lies in the store before it counts, so a retry repeats nothing that was finished:
 * it goes the same way again, from the store. It ends with the search, after a while, when asked to, or when rollouts turn out slow: they
 * are for all workers then.
 */
export const createSearchPrompts =
  (dependencies: AskDependencies) =>
  async ({ handle, state, begunAt, pace }: SearchAttemptInput): Promise<SearchAttempt> => {
    let attempt: OpenAttempt | null = null;
    return withHeartbeat(
      async (cancelled) => {
        const broken = new AbortController();
        setMaxListeners(0, broken.signal); // every rollout listens
        const search = await OpenedSearch.open(dependencies, handle, broken.signal);
        attempt = new OpenAttempt(search, state, pace ?? null);
        const kept = await keepVersion(dependencies, handle.place.prefix, search);
        try {
          return await attempt.finish(cancelled, broken);
        } finally {
          await kept.release();
        }
      },
      () => attempt && { ...attempt.progress(), begunAt },
    );
  };

class OpenAttempt {
  readonly #search: OpenedSearch;
  readonly #startedAt = performance.now();
  readonly #answers: SearchAnswer[][] = [];
  readonly #underWay = new Map<string, Promise<void>>();
  readonly #told: SearchProgress['told'][number][] = [];
  #state: SearchState;
  #come: SearchAnswer[] = [];
  #count = 0;
  #number = 0;
  #requestMs = 0;
  /** Of the newest rollouts; null: of no interest, however slow they are. */
  #pace: SearchPace | null;
  #rolloutsUnderWay = 0;
  #reflectionsUnderWay = 0;
  /** A request has been under way for as long as slow rollouts take; and for longer than is waited for. */
  #isSlow = false;
  #isLate = false;
  #tellLate: () => void = () => undefined;
  readonly #lateNews = new Promise<void>((resolve) => (this.#tellLate = resolve));

  constructor(search: OpenedSearch, state: SearchState, pace: SearchPace | null) {
    this.#search = search;
    this.#state = state;
    this.#pace = pace;
  }

  progress(): Omit<SearchProgress, 'begunAt'> {
    return {
      figures: searchFigures(this.#state),
      told: this.#told.slice(-toldInHeartbeats),
      failed: this.#search.account.failed,
    };
  }

  async finish(cancelled: AbortSignal, broken: AbortController): Promise<SearchAttempt> {
    const failures: unknown[] = [];
    const isOver = (): boolean =>
      cancelled.aborted || failures.length > 0 || this.#isLongEnough() || this.#isForOthers(next(this.#state));
    const drain = drainOn(cancelled, broken);
    try {
      for (;;) {
        if (!isOver()) {
          for (const request of next(this.#state)) {
            if (this.#underWay.has(request.id)) continue;
            const answering = this.#answer(request)
              .catch((reason: unknown) => void failures.push(reason))
              .finally(() => this.#underWay.delete(request.id));
            this.#underWay.set(request.id, answering);
          }
        }
        if (this.#underWay.size === 0) break;
        // A reflection under way is waited for: it would be paid for again.
        if (this.#isLate && this.#reflectionsUnderWay === 0) broken.abort(new Error('slow rollouts are leased'));
        await Promise.race([...this.#underWay.values(), ...(this.#isLate ? [] : [this.#lateNews])]);
        this.#settle();
      }
    } finally {
      drain.end();
    }
    const isCutOff = broken.signal.aborted && !isShutdown(cancelled);
    if (failures.length > 0 && !isCutOff) throw failures[0];
    if (isShutdown(cancelled) && failures.length > 0) throw failures[0];
    const { adopted, failed, firstFailure } = this.#search.account;
    const seconds = (performance.now() - this.#startedAt) / 1000;
    const pace = this.#pace === null ? {} : { pace: this.#isSlow ? null : this.#pace };
    return { answers: this.#answers, adopted, failed, firstFailure, seconds, ...pace };
  }

  async #answer(request: SearchRequest): Promise<void> {
    const startedAt = performance.now();
    const answer = await (request.kind === 'evaluate' ? this.#evaluate(request) : this.#reflect(request));
    this.#requestMs = Math.max(this.#requestMs, performance.now() - startedAt);
    this.#come.push(answer);
  }

  async #evaluate(request: EvaluateRequest): Promise<SearchAnswer> {
    const startedAt = performance.now();
    const { length } = request.examples;
    this.#rolloutsUnderWay += length;
    const beside = this.#rolloutsUnderWay;
    let waitedMs = 0;
    const looking = setInterval(() => this.#look((waitedMs += lookMs)), lookMs);
    try {
      const answer = await this.#search.evaluate(request);
      if (this.#pace !== null) this.#pace = { seconds: (performance.now() - startedAt) / 1000, beside };
      return answer;
    } finally {
      clearInterval(looking);
      this.#rolloutsUnderWay -= length;
    }
  }

  async #reflect(request: ReflectRequest): Promise<SearchAnswer> {
    this.#reflectionsUnderWay += 1;
    try {
      return await this.#search.reflect(request);
    } finally {
      this.#reflectionsUnderWay -= 1;
    }
  }

  /** At a request that was waited for so long. */
  #look(waitedMs: number): void {
    if (this.#pace === null) return;
    this.#isSlow ||= waitedMs >= slowPlayS * 1000;
    this.#isLate ||= waitedMs >= slowPlayS * 1000 + searchDrainMs;
    if (this.#isLate) this.#tellLate();
  }

  /** Other workers would have something of what is asked for. */
  #isForOthers(requests: readonly SearchRequest[]): boolean {
    return this.#pace !== null && (this.#isSlow || !isQuick(requests, this.#pace));
  }

  #settle(): void {
    const batch = this.#come;
    this.#come = [];
    if (batch.length === 0) return;
    this.#state = settle(this.#state, batch);
    this.#answers.push(batch);
    this.#count += batch.length;
    for (const told of tellings(this.#state.events, this.#state)) this.#told.push({ number: ++this.#number, ...told });
  }

  #isLongEnough(): boolean {
    const longMs = Math.max(searchAttemptMs, searchAttemptRequests * this.#requestMs);
    return this.#count >= searchAnswersMax || performance.now() - this.#startedAt > longMs;
  }
}

/** Once the attempt is to end, what is under way has a while; at a shutdown of the worker none, for the next one goes on. */
function drainOn(cancelled: AbortSignal, broken: AbortController): { end: () => void } {
  const ended = new AbortController();
  const begin = (): void => {
    if (isShutdown(cancelled)) return broken.abort(cancelled.reason);
    void delay(searchDrainMs, undefined, { signal: ended.signal }).then(
      () => broken.abort(cancelled.reason),
      () => undefined, // all came in time
    );
  };
  if (cancelled.aborted) begin();
  else cancelled.addEventListener('abort', begin, { once: true });
  return {
    end: () => {
      ended.abort();
      cancelled.removeEventListener('abort', begin);
    },
  };
}

interface ComparePromptsInput {
  readonly handle: PromptSearchHandle;
  readonly best: Texts;
}

/** Scores the first and the best prompt on examples that the search has not seen. What was leased of it, or played before, is not played again. */
export const createComparePrompts =
  (dependencies: AskDependencies) =>
  async ({ handle, best }: ComparePromptsInput): Promise<HeldOutScores> =>
    withHeartbeat(async (signal) => {
      const search = await OpenedSearch.open(dependencies, handle, signal);
      const { start, test } = await storedSearch(handle);
      const score = async ({ id, texts }: { readonly id: string; readonly texts: Texts }) => {
        const rows = await search.score({ id, texts, examples: test, keepsTraces: false });
        return rows.map(({ reward }) => reward);
      };
      const [first, other] = comparedOnTest(start, best);
      const before = await score(first!);
      const after = other === undefined ? before : await score(other);
      const both = before.flatMap((score, i) =>
        score === null || after[i] == null ? [] : [[score, after[i]] as const],
      );
      return {
        examples: both.length,
        before: mean(both.map(([score]) => score)),
        after: mean(both.map(([, score]) => score)),
      };
    });

function mean(values: readonly number[]): number | null {
  return values.length === 0 ? null : values.reduce((sum, value) => sum + value, 0) / values.length;
}
