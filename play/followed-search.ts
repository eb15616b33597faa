import { searchFigures, tellings } from '../core/gepa/figures.ts';
import { answerOf, isQuick, type LeasedWork, type SearchPace, slowPace } from '../core/gepa/leases.ts';
import type { PromptSearchEvent, SearchFigures } from '../core/gepa/prompt-search.ts';
import { next, settle } from '../core/gepa/search.ts';
import type { EvaluateRequest, SearchAnswer, SearchRequest, SearchState } from '../core/gepa/search-state.ts';
import { searchAnswersMax, searchDrainMs, searchLeaseMs, searchLeaseRequests } from '../core/limits.ts';
import { slowPlayS } from '../core/rl/sampling/window.ts';
import type { OpenedSearch } from './opened-search.ts';

/** Progress in the heartbeats of a lease that has the whole search. */
export interface SearchProgress {
  readonly figures: SearchFigures;
  /** The newest events of the search, with the numbers that its workflow will give them counted from the begin of the lease. */
  readonly told: readonly (Pick<PromptSearchEvent, 'kind' | 'text' | 'values'> & { readonly number: number })[];
  readonly failed: number;
  /** Events that were told before it. */
  readonly begunAt: number;
}

const toldInHeartbeats = 8;

/** How often a request that is under way is looked at. A process that stood still between two looks waited for no server. */
const lookMs = 250;

/**
 * The whole search in the hands of one lease: answers what it asks for, and everything that follows from the answers. The workflow takes the
 * same way from the answers that come back. It ends with the search, after a while, when asked to, or when rollouts turn out slow: they are
 * for all workers then.
 */
export class FollowedSearch {
  /** In the order in which they were settled. */
  readonly answers: SearchAnswer[][] = [];
  readonly #search: OpenedSearch;
  readonly #startedAt = performance.now();
  readonly #begunAt: number;
  readonly #underWay = new Map<string, Promise<void>>();
  readonly #told: SearchProgress['told'][number][] = [];
  #state: SearchState;
  #come: SearchAnswer[] = [];
  #count = 0;
  #number = 0;
  #requestMs = 0;
  #pace: SearchPace;
  #rolloutsUnderWay = 0;
  /** A request has been under way for as long as slow rollouts take. */
  #isSlow = false;

  constructor(search: OpenedSearch, { state, pace, begunAt }: Extract<LeasedWork, { kind: 'search' }>) {
    this.#search = search;
    this.#state = state;
    this.#pace = pace;
    this.#begunAt = begunAt;
  }

  /** Pace of the newest rollouts. */
  get pace(): SearchPace {
    return this.#isSlow ? slowPace : this.#pace;
  }

  progress(): SearchProgress {
    return {
      figures: searchFigures(this.#state),
      told: this.#told.slice(-toldInHeartbeats),
      failed: this.#search.account.failed,
      begunAt: this.#begunAt,
    };
  }

  /** Begins nothing new once `ending` is raised. */
  async finish(ending: AbortSignal): Promise<void> {
    const failures: unknown[] = [];
    for (;;) {
      const requests = next(this.#state);
      const isOver = ending.aborted || failures.length > 0 || this.#isLongEnough() || !isQuick(requests, this.pace);
      for (const request of isOver ? [] : requests) {
        if (this.#underWay.has(request.id)) continue;
        const answering = this.#answer(request)
          .catch((reason: unknown) => void failures.push(reason))
          .finally(() => this.#underWay.delete(request.id));
        this.#underWay.set(request.id, answering);
      }
      if (this.#underWay.size === 0) break;
      await Promise.race(this.#underWay.values());
      this.#settle();
    }
    if (failures.length > 0 && !this.#search.isCutOff) throw failures[0];
  }

  async #answer(request: SearchRequest): Promise<void> {
    const startedAt = performance.now();
    const answer = await (request.kind === 'evaluate' ? this.#evaluate(request) : this.#search.reflect(request));
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
      const played = await this.#search.play([{ ...request, from: 0 }]);
      this.#pace = { seconds: (performance.now() - startedAt) / 1000, beside };
      return answerOf(request, played);
    } finally {
      clearInterval(looking);
      this.#rolloutsUnderWay -= length;
    }
  }

  /** At a request that was waited for so long. Reflections under way are waited for: they would be paid for again. */
  #look(waitedMs: number): void {
    this.#isSlow ||= waitedMs >= slowPlayS * 1000;
    if (waitedMs >= slowPlayS * 1000 + searchDrainMs) this.#search.cutOff(new Error('slow rollouts are leased'));
  }

  #settle(): void {
    const batch = this.#come;
    this.#come = [];
    if (batch.length === 0) return;
    this.#state = settle(this.#state, batch);
    this.answers.push(batch);
    this.#count += batch.length;
    for (const told of tellings(this.#state.events, this.#state)) this.#told.push({ number: ++this.#number, ...told });
  }

  #isLongEnough(): boolean {
    const longMs = Math.max(searchLeaseMs, searchLeaseRequests * this.#requestMs);
    return this.#count >= searchAnswersMax || performance.now() - this.#startedAt > longMs;
  }
}
