import { present } from '../present.ts';
import type { CandidateSelection, FrontierType, SearchSettings } from './search-state.ts';

/** Strategies for choosing the next parent, by gepa's names. */
export const selectionStrategies = ['pareto', 'current_best', 'epsilon_greedy', 'top_k_pareto'] as const;
type SelectionStrategy = (typeof selectionStrategies)[number];

export const frontierTypes = [
  'instance',
  'objective',
  'hybrid',
  'cartesian',
] as const satisfies readonly FrontierType[];

/** A person's settings of a search; absent ones keep their defaults. */
export interface SearchTuning {
  /** Validation examples for the screen, the rest being kept for the best at the end; −1 = all. */
  readonly screen?: number | undefined;
  /** Children of one parent and one minibatch. */
  readonly proposals?: number | undefined;
  readonly parallel?: number | undefined;
  /** Several: one of them per iteration, drawn with equal weights. */
  readonly selection?: readonly SelectionStrategy[] | undefined;
  readonly frontier?: FrontierType | undefined;
}

/** Defaults of gepa 0.1.4. */
const epsilon = 0.1;
const topK = 5;

/** The full settings of a tuning. */
export function tunedSettings({
  screen,
  proposals,
  parallel,
  selection,
  frontier,
}: SearchTuning): Partial<SearchSettings> {
  return {
    ...(screen === undefined ? {} : { screen: screen < 0 ? null : screen }),
    ...present({ proposals }),
    // Who says how many are side by side does not mean "at first".
    ...present({ parallel, parallelMax: parallel, candidateSelection: selection && selectionOf(selection), frontier }),
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
