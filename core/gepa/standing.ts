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
  const { settings, candidates } = state;
  const scores = candidates.map((candidate) => candidate.scores);
  const isWhole = scores.map((own) => own.every((score) => score !== null));
  if (isWhole.includes(true))
    return bestByAverage(
      scores.map((own, i) => (isWhole[i] ? own : [])),
      settings,
    );
  const screened = screenedExamples(settings);
  return bestByAverage(
    scores.map((own) => screened.map((example) => own[example] ?? null)),
    settings,
  );
}

/** Position of the highest average; of equals the one that was scored on more, then as {@link ofEquals} has it. */
export function bestByAverage(
  scores: readonly (readonly (number | null)[])[],
  settings: Pick<SearchSettings, 'screen'>,
): number {
  const averages = scores.map(average);
  const coverage = scores.map((own) => own.filter((score) => score !== null).length);
  const order = ofEquals(settings);
  return scores
    .map((_, i) => i)
    .sort((a, b) => averages[b]! - averages[a]! || coverage[b]! - coverage[a]! || order(a, b))[0]!;
}

/**
 * Compares positions of equal candidates. The later one comes first where few examples are looked at: it grew from the
 * others, and was better than its parent on a minibatch that they do not know. Where all are, the first one, as in gepa.
 */
export function ofEquals({ screen }: Pick<SearchSettings, 'screen'>): (a: number, b: number) => number {
  return (a, b) => (screen === null ? a - b : b - a);
}
