import { ApplicationFailure, CancellationScope, condition } from '@temporalio/workflow';
import { leaseWords, searchFigures } from '../core/gepa/figures.ts';
import {
  type AnsweredLease,
  answerOf,
  areQuick,
  type AskedRollouts,
  isQuick,
  type LeasedWork,
  longestOf,
  type PlayedSlice,
  type PromptSlice,
  reflectionsByIteration,
  type SearchPace,
  type SliceBounds,
  slicesOf,
} from '../core/gepa/leases.ts';
import type { PromptSearchHandle, SearchInPlay } from '../core/gepa/prompt-search.ts';
import { next } from '../core/gepa/search.ts';
import type { EvaluateRequest, ReflectRequest, SearchAnswer, SearchState } from '../core/gepa/search-state.ts';
import { present } from '../core/present.ts';
import { slowPlayS } from '../core/rl/sampling/window.ts';
import type { PolicyVersion } from '../core/rl/run-state.ts';
import type { SearchControl } from './control/search-control.ts';
import { promptSearches } from './options.ts';

interface LeasedBy {
  /** Pace of the rollouts; absent or null: unknown. */
  readonly pace?: SearchPace | null;
  /** In place of the version that the search began with. */
  readonly policy?: PolicyVersion;
}

/** A lease that waits for its turn, or is in play. */
interface Turn {
  readonly rollouts: number;
  readonly reflections: number;
  begin: () => void;
}

/** Answers that came together. */
type Batch = readonly SearchAnswer[];

/**
 * A search's requests as leases: slices, each for any rollout worker with room for it. Only the request itself waits
 * for its slices.
 */
export class SearchLeases {
  /** Pace of the newest rollouts; null: unknown, or they were slow. */
  pace: SearchPace | null;
  readonly #handle: PromptSearchHandle;
  readonly #control: Pick<SearchControl, 'failedRollouts'>;
  /** Version in place of the one that the search began with. */
  readonly #policy: PolicyVersion | undefined;
  readonly #scope = new CancellationScope();
  readonly #bounds: SliceBounds;
  /** Requests not answered yet by id, with the number of rollouts awaited. */
  readonly #asked = new Map<string, number>();
  readonly #waiting: Turn[] = [];
  readonly #playing = new Set<Turn>();
  /** Lease of the whole search; null without one. */
  #whole: CancellationScope | null = null;
  #batches: Batch[] = [];
  #failures: unknown[] = [];

  constructor(
    handle: PromptSearchHandle,
    control: Pick<SearchControl, 'failedRollouts'>,
    { pace = null, policy }: LeasedBy,
  ) {
    const { maxConcurrent, workers } = handle;
    this.#handle = handle;
    this.#control = control;
    this.#policy = policy;
    this.#bounds = { workers, inFlightMax: maxConcurrent < 1 ? Infinity : maxConcurrent };
    this.pace = pace;
  }

  /** Whether all requested answers have been taken. */
  get isIdle(): boolean {
    return this.#asked.size === 0;
  }

  /** One lease has the whole search: until it ends, nobody else may change the search. */
  get isWhole(): boolean {
    return this.#whole !== null;
  }

  /** Something was answered, or nothing is in play any more. */
  get hasNews(): boolean {
    return this.#batches.length > 0 || this.#failures.length > 0 || this.isIdle;
  }

  get inPlay(): SearchInPlay {
    return {
      leases: this.#playing.size,
      rollouts: sumOf('rollouts', this.#playing),
      waiting: sumOf('rollouts', this.#waiting),
      reflections: sumOf('reflections', this.#playing),
    };
  }

  /** How many rollouts of a request are awaited. */
  leftOf({ id, examples }: EvaluateRequest): number {
    return this.#asked.get(id) ?? examples.length;
  }

  /** Leases what was not asked yet. `told`: events of the search by now. */
  ask(state: SearchState, told: number): void {
    const requests = next(state).filter(({ id }) => !this.#asked.has(id));
    const { pace } = this;
    const isWhole = this.isIdle && pace !== null && state.phase !== 'start' && isQuick(requests, pace);
    for (const one of requests) this.#asked.set(one.id, one.kind === 'evaluate' ? one.examples.length : 0);
    if (isWhole) return this.#follow(this.#searchOn({ kind: 'search', state, pace, begunAt: told }));
    for (const one of requests) if (one.kind === 'evaluate') this.#follow(this.#evaluate(one));
    for (const together of reflectionsByIteration(requests)) this.#follow(this.#reflect(together));
  }

  /** Ends the lease that has the whole search: what it has under way is finished. */
  endWhole(): void {
    this.#whole?.cancel();
  }

  /** Answers since the last call, in the order of their settlement. Throws the first failure once nothing is in play any more. */
  async take(): Promise<readonly Batch[]> {
    if (this.#failures.length > 0) {
      await condition(() => this.#playing.size === 0);
      throw this.#failures[0];
    }
    const batches = this.#batches;
    this.#batches = [];
    for (const { id } of batches.flat()) this.#asked.delete(id);
    return batches;
  }

  /**
   * The same for rollouts of unknown pace. The first lease shows how long the rest would take one worker; if that is
   * short, it is left to the reader of the scores.
   */
  async play(asked: readonly AskedRollouts[], what: string): Promise<readonly PlayedSlice['scores'][]> {
    const slices = asked.flatMap((one) => slicesOf(one, this.#bounds));
    const played = new Map<PromptSlice, PlayedSlice>();
    const lease = async (leased: readonly PromptSlice[]): Promise<void> => {
      const come = await this.#play(leased, `${rolloutsIn(leased)} ${what}`);
      leased.forEach((slice, i) => played.set(slice, come.played[i]!));
      this.pace = come.pace ?? this.pace;
    };
    try {
      const [first, ...others] = slices;
      const isUnknown = this.pace === null && first !== undefined;
      const begun = isUnknown ? lease([first]) : Promise.resolve();
      if (isUnknown) {
        const isOver = await within(begun, slowPlayS * 1000);
        if (isOver) await begun;
      }
      const rest = isUnknown ? others : slices;
      const leased = areQuick(rolloutsIn(rest), this.pace) ? [rest] : rest.map((slice) => [slice]);
      await Promise.all([begun, ...leased.filter(({ length }) => length > 0).map(lease)]);
    } catch (error) {
      this.#scope.cancel(); // of what fails the others are not played
      throw error;
    }
    return asked.map(({ id }) => slices.flatMap((slice) => (slice.id === id ? played.get(slice)!.scores : [])));
  }

  #follow(answers: Promise<readonly Batch[]>): void {
    answers.then(
      (come) => void this.#batches.push(...come),
      (reason: unknown) => {
        this.#failures.push(reason);
        this.#scope.cancel();
      },
    );
  }

  async #evaluate(request: EvaluateRequest): Promise<readonly Batch[]> {
    const { id, examples, purpose } = request;
    const leases = await Promise.all(
      slicesOf(request, this.#bounds).map(async (slice): Promise<AnsweredLease> => {
        const { length } = slice.examples;
        const one = await this.#play([slice], leaseWords(request, `${length} of ${examples.length}`));
        this.#asked.set(id, this.#asked.get(id)! - length);
        return one;
      }),
    );
    const played = leases.flatMap((one) => one.played);
    const refused = played.map((one) => one.refused);
    if (purpose === 'start' && !refused.includes(null))
      throw ApplicationFailure.nonRetryable(refused[0], 'InferenceRejected');
    // Stored results say nothing about the pace of rollouts.
    this.pace = longestOf(leases) ?? this.pace ?? { seconds: 0, beside: 1 };
    return [[answerOf(request, played)]];
  }

  async #reflect(requests: readonly ReflectRequest[]): Promise<readonly Batch[]> {
    const turn: Turn = { rollouts: 0, reflections: requests.length, begin: () => undefined };
    this.#playing.add(turn); // only rollouts wait for their turn
    try {
      const summary = leaseWords(requests[0]!, String(requests.length));
      return (await this.#lease({ kind: 'reflections', requests }, summary)).answers;
    } finally {
      this.#playing.delete(turn);
      this.#letIn();
    }
  }

  async #searchOn(work: Extract<LeasedWork, { kind: 'search' }>): Promise<readonly Batch[]> {
    const scope = new CancellationScope({ cancellable: true, parent: this.#scope });
    this.#whole = scope;
    const { calls, maxCalls, waitingOn } = searchFigures(work.state);
    const summary = `${calls} of ${maxCalls} calls: ${waitingOn.join(', ')}`.slice(0, 200);
    try {
      const { answers, pace } = await this.#lease(work, summary, scope);
      this.pace = pace;
      this.#batches.push(...answers);
      return [];
    } catch (error) {
      // Its worker went away while it was to end: Temporal does not try again what was cancelled. The rest is asked again.
      if (scope.consideredCancelled && !this.#scope.consideredCancelled) return [];
      throw error;
    } finally {
      this.#whole = null;
      this.#asked.clear();
    }
  }

  async #play(slices: readonly PromptSlice[], summary: string): Promise<AnsweredLease> {
    const turn: Turn = { rollouts: rolloutsIn(slices), reflections: 0, begin: () => undefined };
    const begun = new Promise<void>((resolve) => (turn.begin = resolve));
    this.#waiting.push(turn);
    this.#letIn();
    await begun;
    try {
      return await this.#lease({ kind: 'slices', slices }, summary);
    } finally {
      this.#playing.delete(turn);
      this.#letIn();
    }
  }

  async #lease(work: LeasedWork, summary: string, scope = this.#scope): Promise<AnsweredLease> {
    const lease = { handle: this.#handle, work, ...present({ policy: this.#policy }) };
    const rollouts = work.kind === 'slices' ? rolloutsIn(work.slices) : 1;
    const searches = promptSearches(rollouts);
    const answered = await scope.run(() => searches.answerSearch.executeWithOptions({ summary }, [lease]));
    this.#control.failedRollouts(answered);
    return answered;
  }

  /** In their order, each when few enough rollouts are in play. */
  #letIn(): void {
    for (let one = this.#waiting[0]; one; one = this.#waiting[0]) {
      const inPlay = sumOf('rollouts', this.#playing);
      if (inPlay > 0 && inPlay + one.rollouts > this.#bounds.inFlightMax) return;
      this.#waiting.shift();
      this.#playing.add(one);
      one.begin();
    }
  }
}

/** Whether it has ended, well or not, after so many milliseconds at most. */
async function within(work: Promise<unknown>, ms: number): Promise<boolean> {
  let isOver = false;
  const end = (): void => void (isOver = true);
  work.then(end, end);
  return condition(() => isOver, ms);
}

function rolloutsIn(slices: readonly PromptSlice[]): number {
  return slices.reduce((sum, { examples }) => sum + examples.length, 0);
}

function sumOf(what: 'rollouts' | 'reflections', turns: Iterable<Turn>): number {
  return [...turns].reduce((sum, { [what]: count }) => sum + count, 0);
}
