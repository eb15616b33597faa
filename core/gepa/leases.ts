import { slowPlayS } from '../rl/sampling/window.ts';
import { present } from '../present.ts';
import type { PolicyVersion } from '../rl/run-state.ts';
import type { HeldOutScores, PromptSearchHandle } from './prompt-search.ts';
import type {
  EvaluateRequest,
  ExampleSet,
  ReflectRequest,
  SearchAnswer,
  SearchRequest,
  SearchState,
  Texts,
} from './search-state.ts';

/** Duration of a request's longest rollout in seconds, and the rollouts in flight beside it in its process. */
export interface SearchPace {
  readonly seconds: number;
  readonly beside: number;
}

/** Some examples of a request, for one rollout worker: a lease. */
export interface PromptSlice {
  /** Id of the request; rows of the store have it, with the example's index in the request. */
  readonly id: string;
  /** null: the system prompt of each example. */
  readonly texts: Texts | null;
  /** `test`: examples unseen by the search. */
  readonly set: ExampleSet | 'test';
  readonly keepsTraces: boolean;
  /** Index in the request of the first of `examples`. */
  readonly from: number;
  readonly examples: readonly number[];
}

/** A request before it is cut into slices. */
export type AskedRollouts = Omit<PromptSlice, 'from'>;

/** A part of a search for one rollout worker: one activity. */
export interface SearchLease {
  readonly handle: PromptSearchHandle;
  /** In place of the version that the search was begun with. */
  readonly policy?: PolicyVersion;
  readonly work: LeasedWork;
}

export type LeasedWork =
  | { readonly kind: 'slices'; readonly slices: readonly PromptSlice[] }
  /** Reflections of one iteration, which continues when all of them are there. */
  | { readonly kind: 'reflections'; readonly requests: readonly ReflectRequest[] }
  /** The whole search, while its rollouts are quick: the worker answers what is open, and what follows from the answers. */
  | {
      readonly kind: 'search';
      readonly state: SearchState;
      readonly pace: SearchPace;
      /** Events that were told before this lease. */
      readonly begunAt: number;
    };

/** Results of a slice, in the order of its examples. */
export interface PlayedSlice {
  /** null: no score, due to infrastructure. */
  readonly scores: readonly (number | null)[];
  /** Present if candidates are compared by objectives. */
  readonly objectives?: readonly (Readonly<Record<string, number>> | null)[];
  /** Message of the model's server if it refused all of them; else null. */
  readonly refused: string | null;
}

/** Result of a lease. */
export interface AnsweredLease {
  /** Results of its slices, in order. */
  readonly played: readonly PlayedSlice[];
  /** Answers in the order in which they were settled; those together that came together. */
  readonly answers: readonly (readonly SearchAnswer[])[];
  /** Rollouts and reflections that were in the store already. */
  readonly adopted: number;
  /** Rollouts that failed through infrastructure, and the first failure of all. */
  readonly failed: number;
  readonly firstFailure: string | null;
  /** Pace of the newest rollouts; null before the first. */
  readonly pace: SearchPace | null;
}

/** Most leases of a request; more than eight rollout workers get two each. Every lease costs events. */
const slicesMax = 16;
/**
 * A lease costs six events of history or more, so it gets this many rollouts if its request has them: a child's
 * minibatch is one.
 */
const rolloutsPerSlice = 3;

/** Whether one process answers all of these faster than they could be distributed. */
export function isQuick(requests: readonly SearchRequest[], pace: SearchPace | null): boolean {
  const counts = requests.map((request) => (request.kind === 'evaluate' ? request.examples.length : 0));
  return areQuick(
    counts.reduce((sum, count) => sum + count, 0),
    pace,
  );
}

/** Whether so many rollouts would be quick. */
export function areQuick(rollouts: number, pace: SearchPace | null): boolean {
  if (pace === null) return false;
  return pace.seconds * Math.max(1, rollouts / pace.beside) < slowPlayS;
}

/** The pace of rollouts that one process does not play sooner than they could be spread. */
export const slowPace: SearchPace = { seconds: slowPlayS, beside: 1 };

/** The pace of the lease that took longest; null: none was played. */
export function longestOf(leases: readonly Pick<AnsweredLease, 'pace'>[]): SearchPace | null {
  const paces = leases.flatMap(({ pace }) => pace ?? []);
  return paces.sort((a, b) => b.seconds - a.seconds)[0] ?? null;
}

/** Bounds on the leases of a request. */
export interface SliceBounds {
  readonly workers?: number | undefined;
  /** Most rollouts in flight. */
  readonly inFlightMax: number;
}

/** The leases of a request. Rows and random numbers depend on the request alone, not on workers or order. */
export function slicesOf(
  { id, texts, set, keepsTraces, examples }: AskedRollouts,
  { workers = 1, inFlightMax }: SliceBounds,
): PromptSlice[] {
  const count = Math.min(Math.ceil(examples.length / rolloutsPerSlice), Math.max(slicesMax, 2 * workers));
  const size = Math.min(Math.ceil(examples.length / Math.max(1, count)), inFlightMax);
  return Array.from({ length: Math.ceil(examples.length / size) }, (_, i) => ({
    id,
    texts,
    set,
    keepsTraces,
    from: i * size,
    examples: examples.slice(i * size, (i + 1) * size),
  }));
}

/** A request's answer, from all of its slices in their order. Each example was a metric call, however it ended. */
export function answerOf({ id, examples }: EvaluateRequest, played: readonly PlayedSlice[]): SearchAnswer {
  const scores = played.flatMap((slice) => slice.scores);
  const hasObjectives = played.every(({ objectives }) => objectives !== undefined);
  const objectives = hasObjectives ? played.flatMap((slice) => slice.objectives!) : undefined;
  return { kind: 'scores', id, scores, paid: examples.length, ...present({ objectives }) };
}

/** Reflections of an iteration share a lease, since the iteration continues when all of them are done. */
export function reflectionsByIteration(requests: readonly SearchRequest[]): ReflectRequest[][] {
  const together = new Map<number, ReflectRequest[]>();
  for (const request of requests) {
    if (request.kind !== 'reflect') continue;
    together.set(request.iteration, [...(together.get(request.iteration) ?? []), request]);
  }
  return [...together.values()];
}

/** The first and the best prompt on unseen examples of the search; equal texts are scored once. */
export function comparedOnTest(start: Texts, best: Texts): { readonly id: string; readonly texts: Texts }[] {
  const isSame = Object.entries(start).every(([name, text]) => best[name] === text);
  const first = { id: 'test.start', texts: start };
  return isSame ? [first] : [first, { id: `test.${Object.values(best).join('.')}`, texts: best }];
}

/** Both prompts' scores of the same examples, as means over those that both were scored on. */
export function compareScores(first: PlayedSlice['scores'], other: PlayedSlice['scores']): HeldOutScores {
  const both = first.flatMap((before, i) => {
    const after = other[i];
    return before === null || after == null ? [] : [{ before, after }];
  });
  return {
    examples: both.length,
    before: meanOf(both.map(({ before }) => before)),
    after: meanOf(both.map(({ after }) => after)),
  };
}

function meanOf(values: readonly number[]): number | null {
  return values.length === 0 ? null : values.reduce((sum, value) => sum + value, 0) / values.length;
}
