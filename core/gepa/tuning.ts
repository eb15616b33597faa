import type { CandidateSelection, FrontierType, SearchSettings } from './search-state.ts';

/** Who is written anew next, by gepa's names. */
export const selectionStrategies = ['pareto', 'current_best', 'epsilon_greedy', 'top_k_pareto'] as const;
type SelectionStrategy = (typeof selectionStrategies)[number];

export const frontierTypes = [
  'instance',
  'objective',
  'hybrid',
  'cartesian',
] as const satisfies readonly FrontierType[];

/** What a person sets of a search in place of its defaults; what is absent stays as it is. */
export interface SearchTuning {
  /** Validation examples that tell candidates apart, the rest being kept for the best at the end; −1 = all. */
  readonly screen?: number | undefined;
  /** Children of one parent and one minibatch. */
  readonly proposals?: number | undefined;
  /** Iterations side by side. */
  readonly parallel?: number | undefined;
  /** Several: one of them for each iteration, drawn with equal weights. */
  readonly selection?: readonly SelectionStrategy[] | undefined;
  readonly frontier?: FrontierType | undefined;
}

/** gepa 0.1.4's, where it is not told others. */
const epsilon = 0.1;
const topK = 5;

/** The settings that a tuning stands for. */
export function tunedSettings({
  screen,
  proposals,
  parallel,
  selection,
  frontier,
}: SearchTuning): Partial<SearchSettings> {
  return {
    ...(screen === undefined ? {} : { screen: screen < 0 ? null : screen }),
    ...(proposals === undefined ? {} : { proposals }),
    // Who says how many are side by side does not mean "at first".
    ...(parallel === undefined ? {} : { parallel, parallelMax: parallel }),
    ...(selection === undefined ? {} : { candidateSelection: selectionOf(selection) }),
    ...(frontier === undefined ? {} : { frontier }),
  };
}

function selectionOf(strategies: readonly SelectionStrategy[]): CandidateSelection {
  const [first, ...others] = strategies.map(oneOf);
  if (first !== undefined && others.length === 0) return first;
  return { kind: 'mixed', of: strategies.map((strategy) => ({ weight: 1, selection: oneOf(strategy) })) };
}

function oneOf(kind: SelectionStrategy): CandidateSelection {
  if (kind === 'epsilon_greedy') return { kind, epsilon };
  if (kind === 'top_k_pareto') return { kind, k: topK };
  return { kind };
}
