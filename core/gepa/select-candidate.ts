import { type Fronts, weightsOf, withoutDominated } from './fronts.ts';
import type { CandidateSelection } from './search-state.ts';

/** The candidate that is reflected on next. `random` gives numbers in [0, 1). */
export function selectCandidate(
  selection: CandidateSelection,
  fronts: Fronts,
  averages: readonly number[],
  random: () => number,
): number {
  switch (selection.kind) {
    case 'current_best':
      return highest(averages);
    case 'epsilon_greedy':
      return random() < selection.epsilon ? Math.floor(random() * averages.length) : highest(averages);
    case 'pareto':
    case 'top_k_pareto': {
      const weights = frontWeights(selection, fronts, averages);
      return weights.size === 0 ? highest(averages) : drawWeighted([...weights], random());
    }
    case 'mixed': {
      const drawn = drawWeighted(
        selection.of.map((part, i) => [i, part.weight]),
        random(),
      );
      return selectCandidate(selection.of[drawn]!.selection, fronts, averages, random);
    }
    default:
      return selection satisfies never;
  }
}

/** The number of tickets of each candidate in the draw of `pareto` or `top_k_pareto`. */
export function frontWeights(
  selection: Extract<CandidateSelection, { kind: 'pareto' | 'top_k_pareto' }>,
  fronts: Fronts,
  averages: readonly number[],
): Map<number, number> {
  const kept = selection.kind === 'pareto' ? fronts : among(fronts, highestOf(averages, selection.k));
  return weightsOf(withoutDominated(kept, averages));
}

/** Index of the first highest value. */
export function highest(values: readonly number[]): number {
  return values.reduce((best, value, i) => (value > values[best]! ? i : best), 0);
}

/** The key at `u` (in [0, 1)) of the summed weights. */
export function drawWeighted(weighted: readonly (readonly [key: number, weight: number])[], u: number): number {
  let left = u * weighted.reduce((sum, [, weight]) => sum + weight, 0);
  for (const [key, weight] of weighted) {
    if (left < weight) return key;
    left -= weight;
  }
  return weighted.at(-1)![0];
}

function highestOf(averages: readonly number[], k: number): Set<number> {
  const ranked = averages
    .map((value, i) => [value, i] as const)
    .toSorted(([a, i], [b, j]) => (a === b ? i - j : b - a));
  return new Set(ranked.slice(0, k).map(([, i]) => i));
}

function among(fronts: Fronts, kept: ReadonlySet<number>): Fronts {
  const cut = [...fronts].map(([name, front]) => [name, front.filter((candidate) => kept.has(candidate))] as const);
  return new Map(cut.filter(([, front]) => front.length > 0));
}
