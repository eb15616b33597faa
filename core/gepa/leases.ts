import { slowPlayS } from '../rl/window.ts';
import { present } from '../present.ts';
import type {
  EvaluateRequest,
  ExampleSet,
  ReflectRequest,
  SearchAnswer,
  SearchRequest,
  Texts,
} from './search-state.ts';

/** How long the rollouts of a request took: the longest, in seconds, and how many were in play in its process with it. */
export interface SearchPace {
  readonly seconds: number;
  readonly beside: number;
}

/** Some examples of a request, for one rollout worker: a lease. */
export interface PromptSlice {
  /** Of the request; a row of the store has it, and the example's index in the request. */
  readonly id: string;
  /** null: each example's own system prompt. */
  readonly texts: Texts | null;
  /** `test`: what neither side of the search has seen. */
  readonly set: ExampleSet | 'test';
  readonly keepsTraces: boolean;
  /** Index in the request of the first of `examples`. */
  readonly from: number;
  readonly examples: readonly number[];
}

/** A request before it is cut into slices. */
export type AskedRollouts = Omit<PromptSlice, 'from'>;

/** What came of a slice, in the order of its examples. */
export interface PlayedSlice {
  /** null: no score came, through infrastructure. */
  readonly scores: readonly (number | null)[];
  /** Where candidates are compared by them. */
  readonly objectives?: readonly (Readonly<Record<string, number>> | null)[];
  /** Rollouts that lay in the store already. */
  readonly adopted: number;
  readonly failed: number;
  readonly firstFailure: string | null;
  /** What the model's server said, where it refused all of them; else null. */
  readonly refused: string | null;
  /** null: none was played, all lay in the store. */
  readonly pace: SearchPace | null;
}

/** What came of reflections, in their order. */
export interface Reflected {
  readonly answers: readonly SearchAnswer[];
  readonly adopted: number;
  readonly firstFailure: string | null;
}

/** Of a request so many leases, or two for each rollout worker where there are more than eight: each costs events. */
const slicesMax = 16;
/** A lease costs six events of its history or more, so it has so many rollouts where its request has as many: a child's minibatch is one. */
const rolloutsPerSlice = 3;

/** Whether one process answers all of these sooner than they could be spread: in less time than slow rollouts take. */
export function isQuick(requests: readonly SearchRequest[], pace: SearchPace | null): boolean {
  const counts = requests.map((request) => (request.kind === 'evaluate' ? request.examples.length : 0));
  return areQuick(
    counts.reduce((sum, count) => sum + count, 0),
    pace,
  );
}

/** The same of so many rollouts. */
export function areQuick(rollouts: number, pace: SearchPace | null): boolean {
  if (pace === null) return false;
  return pace.seconds * Math.max(1, rollouts / pace.beside) < slowPlayS;
}

/** The pace of the slice that took longest; null: none was played. */
export function longestOf(played: readonly PlayedSlice[]): SearchPace | null {
  const paces = played.flatMap(({ pace }) => pace ?? []);
  return paces.sort((a, b) => b.seconds - a.seconds)[0] ?? null;
}

/** What leases of a request are cut by. */
export interface SliceBounds {
  /** Rollout workers that there are. */
  readonly workers?: number | undefined;
  /** Rollouts in play at once. */
  readonly inFlightMax: number;
  /** Of a lease, where there are as many. */
  readonly rolloutsMin?: number | undefined;
}

/** The leases of a request. Whichever worker plays one, in whatever order, rows and random numbers are those of the request. */
export function slicesOf(
  { id, texts, set, keepsTraces, examples }: AskedRollouts,
  { workers = 1, inFlightMax, rolloutsMin = rolloutsPerSlice }: SliceBounds,
): PromptSlice[] {
  const count = Math.min(Math.ceil(examples.length / rolloutsMin), Math.max(slicesMax, 2 * workers));
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

/** Reflections of an iteration are one lease: it goes on when all of them are there. */
export function reflectionsByIteration(requests: readonly SearchRequest[]): ReflectRequest[][] {
  const together = new Map<number, ReflectRequest[]>();
  for (const request of requests) {
    if (request.kind !== 'reflect') continue;
    together.set(request.iteration, [...(together.get(request.iteration) ?? []), request]);
  }
  return [...together.values()];
}

/** The first and the best prompt on examples that the search has not seen; what is the same is scored once. */
export function comparedOnTest(start: Texts, best: Texts): { readonly id: string; readonly texts: Texts }[] {
  const isSame = Object.entries(start).every(([name, text]) => best[name] === text);
  const first = { id: 'test.start', texts: start };
  return isSame ? [first] : [first, { id: `test.${Object.values(best).join('.')}`, texts: best }];
}
