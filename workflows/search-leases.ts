import { ApplicationFailure, CancellationScope, condition } from '@temporalio/workflow';
import { present } from '../core/present.ts';
import { leaseWords } from '../core/gepa/figures.ts';
import {
  answerOf,
  areQuick,
  type AskedRollouts,
  longestOf,
  type PlayedSlice,
  type PromptSlice,
  reflectionsByIteration,
  type SearchPace,
  type SliceBounds,
  slicesOf,
} from '../core/gepa/leases.ts';
import type { PromptSearchHandle, SearchInPlay } from '../core/gepa/prompt-search.ts';
import type { EvaluateRequest, ReflectRequest, SearchAnswer, SearchRequest } from '../core/gepa/search-state.ts';
import { slowPlayS } from '../core/rl/window.ts';
import type { PolicyVersion } from '../core/rl/run-state.ts';
import type { SearchControl } from './control/search-control.ts';
import { promptSearches } from './options.ts';

interface LeasedBy extends Pick<SliceBounds, 'rolloutsMin'> {
  /** What is known of the rollouts; absent, as null: nothing. */
  readonly pace?: SearchPace | null;
  /** In place of the version that the search was begun with. */
  readonly policy?: PolicyVersion;
}

/** One that waits for its turn, or is in play. */
interface Lease {
  readonly rollouts: number;
  begin: () => void;
}

/**
 * What a search asks for, as leases: slices of its requests, each for whichever rollout worker has room for it. Nothing waits for a slice but
 * the request that it is of.
 */
export class SearchLeases {
  /** Of the newest rollouts; null: nothing is known, or they were slow. */
  pace: SearchPace | null;
  readonly #handle: PromptSearchHandle;
  readonly #control: Pick<SearchControl, 'failedRollouts'>;
  /** In place of the version that the search was begun with. */
  readonly #policy: PolicyVersion | undefined;
  readonly #scope = new CancellationScope();
  readonly #bounds: SliceBounds;
  /** By id: what was asked and not taken yet, and how many of its rollouts are awaited. */
  readonly #asked = new Map<string, number>();
  readonly #waiting: Lease[] = [];
  readonly #playing = new Set<Lease>();
  #reflections = 0;
  #reflectionLeases = 0;
  #answers: SearchAnswer[] = [];
  #failures: unknown[] = [];

  constructor(
    handle: PromptSearchHandle,
    control: Pick<SearchControl, 'failedRollouts'>,
    { pace = null, policy, rolloutsMin }: LeasedBy,
  ) {
    const { maxConcurrent = -1, workers } = handle;
    this.#handle = handle;
    this.#control = control;
    this.#policy = policy;
    this.#bounds = { workers, inFlightMax: maxConcurrent < 1 ? Infinity : maxConcurrent, rolloutsMin };
    this.pace = pace;
  }

  /** Nothing was asked that is not taken. */
  get isIdle(): boolean {
    return this.#asked.size === 0;
  }

  get hasNews(): boolean {
    return this.#answers.length > 0 || this.#failures.length > 0;
  }

  get inPlay(): SearchInPlay {
    return {
      leases: this.#playing.size + this.#reflectionLeases,
      rollouts: rolloutsOf(this.#playing),
      waiting: rolloutsOf(this.#waiting),
      reflections: this.#reflections,
    };
  }

  /** How many rollouts of a request are awaited. */
  leftOf({ id, examples }: EvaluateRequest): number {
    return this.#asked.get(id) ?? examples.length;
  }

  /** Leases what was not asked yet. */
  ask(requests: readonly SearchRequest[]): void {
    const fresh = requests.filter(({ id }) => !this.#asked.has(id));
    for (const request of fresh) this.#asked.set(request.id, request.kind === 'evaluate' ? request.examples.length : 0);
    for (const request of fresh) if (request.kind === 'evaluate') this.#follow(this.#evaluate(request));
    for (const together of reflectionsByIteration(fresh)) this.#follow(this.#reflect(together));
  }

  /** What has been answered since. Throws what cannot be answered, once nothing is in play any more. */
  async take(): Promise<readonly SearchAnswer[]> {
    if (this.#failures.length > 0) {
      await condition(() => this.#playing.size + this.#reflectionLeases === 0);
      throw this.#failures[0];
    }
    const answers = this.#answers;
    this.#answers = [];
    for (const { id } of answers) this.#asked.delete(id);
    return answers;
  }

  /** Plays what no request of the search asks for: the store has the scores then. */
  async play(asked: readonly AskedRollouts[], what: string): Promise<void> {
    await this.#playAll(this.#slices(asked), what);
  }

  /**
   * The same of what nothing is known of yet. Its first lease tells how long the rest would take one worker; where that is not long, it is
   * left to whoever takes the scores.
   */
  async playSlow(asked: readonly AskedRollouts[], what: string): Promise<void> {
    const [first, ...rest] = this.#slices(asked);
    if (first === undefined) return;
    let isOver = false;
    const begun = this.#playAll([first], what).finally(() => (isOver = true));
    begun.catch(() => undefined); // it is awaited below
    if (await condition(() => isOver, slowPlayS * 1000)) {
      const [played] = await begun;
      if (areQuick(rolloutsIn(rest), played!.pace)) return;
    }
    await Promise.all([begun, this.#playAll(rest, what)]);
  }

  #slices(asked: readonly AskedRollouts[]): PromptSlice[] {
    return asked.flatMap((one) => slicesOf(one, this.#bounds));
  }

  /** All, or none any more: of what fails the others are not played. */
  async #playAll(slices: readonly PromptSlice[], what: string): Promise<PlayedSlice[]> {
    try {
      return await Promise.all(slices.map((slice) => this.#play(slice, `${slice.examples.length} ${what}`)));
    } catch (error) {
      this.#scope.cancel();
      throw error;
    }
  }

  #follow(answers: Promise<readonly SearchAnswer[]>): void {
    answers.then(
      (come) => void this.#answers.push(...come),
      (reason: unknown) => {
        this.#failures.push(reason);
        this.#scope.cancel();
      },
    );
  }

  async #evaluate(request: EvaluateRequest): Promise<readonly SearchAnswer[]> {
    const { id, examples, purpose } = request;
    const played = await Promise.all(
      slicesOf(request, this.#bounds).map(async (slice): Promise<PlayedSlice> => {
        const { length } = slice.examples;
        const one = await this.#play(slice, leaseWords(request, `${length} of ${examples.length}`));
        this.#asked.set(id, this.#asked.get(id)! - length);
        return one;
      }),
    );
    const refused = played.map((one) => one.refused);
    if (purpose === 'start' && !refused.includes(null))
      throw ApplicationFailure.nonRetryable(refused[0], 'InferenceRejected');
    // What lay in the store says nothing of rollouts.
    this.pace = longestOf(played) ?? this.pace ?? { seconds: 0, beside: 1 };
    return [answerOf(request, played)];
  }

  async #reflect(requests: readonly ReflectRequest[]): Promise<readonly SearchAnswer[]> {
    this.#reflections += requests.length;
    this.#reflectionLeases += 1;
    try {
      const summary = leaseWords(requests[0]!, String(requests.length));
      const { answers, firstFailure } = await this.#scope.run(() =>
        promptSearches.reflectOnPrompt.executeWithOptions({ summary }, [{ handle: this.#handle, requests }]),
      );
      this.#control.failedRollouts({ failed: 0, firstFailure });
      return answers;
    } finally {
      this.#reflections -= requests.length;
      this.#reflectionLeases -= 1;
    }
  }

  async #play(slice: PromptSlice, summary: string): Promise<PlayedSlice> {
    const lease: Lease = { rollouts: slice.examples.length, begin: () => undefined };
    const begun = new Promise<void>((resolve) => (lease.begin = resolve));
    this.#waiting.push(lease);
    this.#letIn();
    await begun;
    try {
      const played = await this.#scope.run(() =>
        promptSearches.evaluatePrompt.executeWithOptions({ summary }, [
          { handle: this.#handle, slice, ...present({ policy: this.#policy }) },
        ]),
      );
      this.#control.failedRollouts(played);
      return played;
    } finally {
      this.#playing.delete(lease);
      this.#letIn();
    }
  }

  /** In their order, each when few enough rollouts are in play. */
  #letIn(): void {
    for (let next = this.#waiting[0]; next; next = this.#waiting[0]) {
      if (this.#playing.size > 0 && rolloutsOf(this.#playing) + next.rollouts > this.#bounds.inFlightMax) return;
      this.#waiting.shift();
      this.#playing.add(next);
      next.begin();
    }
  }
}

function rolloutsIn(slices: readonly PromptSlice[]): number {
  return slices.reduce((sum, { examples }) => sum + examples.length, 0);
}

function rolloutsOf(leases: Iterable<Lease>): number {
  return [...leases].reduce((sum, { rollouts }) => sum + rollouts, 0);
}
