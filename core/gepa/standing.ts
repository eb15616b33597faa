import { permutation } from '../random.ts';
import { average, type Fronts, frontsOf } from './fronts.ts';
import type { SearchSettings, SearchState } from './search-state.ts';

/** Validation examples that every candidate is scored on, ascending. */
export function screenedExamples({
  seed,
  valSize,
  screen,
}: Pick<SearchSettings, 'seed' | 'valSize' | 'screen'>): number[] {
  if (screen === null) return Array.from({ length: valSize }, (_, example) => example);
  return permutation(valSize, seed, 'gepa', 'screen')
    .slice(0, screen)
    .sort((a, b) => a - b);
}

/** Each candidate's average over what all were scored on. */
export function screenedAverages({ settings, candidates }: SearchState): number[] {
  const screened = screenedExamples(settings);
  return candidates.map(({ scores }) => average(screened.map((example) => scores[example] ?? null)));
}

/** Over what all were scored on: who has been scored on more has no front of its own for it. */
export function screenedFronts({ settings, candidates }: SearchState): Fronts {
  return frontsOf(settings.frontier, candidates, screenedExamples(settings));
}

/**
 * Position of the best candidate: among those that were scored on every validation example; before there are such, among
 * all by what all were scored on.
 */
export function bestOf(state: SearchState): number {
  const scores = state.candidates.map((candidate) => candidate.scores);
  const isWhole = scores.map((own) => own.every((score) => score !== null));
  if (isWhole.includes(true)) return bestByAverage(scores.map((own, i) => (isWhole[i] ? own : [])));
  const screened = screenedExamples(state.settings);
  return bestByAverage(scores.map((own) => screened.map((example) => own[example] ?? null)));
}

/** Position of the highest average; of equals the one that was scored on more, then the first. */
export function bestByAverage(scores: readonly (readonly (number | null)[])[]): number {
  const averages = scores.map(average);
  const coverage = scores.map((own) => own.filter((score) => score !== null).length);
  return scores.reduce((best, _, i) => {
    const isBetter = averages[i]! > averages[best]!;
    return isBetter || (averages[i] === averages[best] && coverage[i]! > coverage[best]!) ? i : best;
  }, 0);
}
