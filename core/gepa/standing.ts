import { permutation } from '../random.ts';
import { average, type Fronts, frontsOf } from './fronts.ts';
import { highest } from './select-candidate.ts';
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
 * Position of the best candidate: the highest average among those that were scored on every validation example; before
 * there are such, among all. Of equals the first.
 */
export function bestOf(state: SearchState): number {
  const isWhole = state.candidates.map(({ scores }) => scores.every((score) => score !== null));
  if (!isWhole.includes(true)) return highest(screenedAverages(state));
  return highest(state.candidates.map(({ scores }, i) => (isWhole[i] ? average(scores) : -Infinity)));
}
