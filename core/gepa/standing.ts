import { permutation } from '../random.ts';
import { average, type Fronts, frontsOf } from './fronts.ts';
import type { Candidate, SearchSettings, SearchState } from './search-state.ts';

/** Validation examples that every candidate is scored on, ascending. */
export function screenedExamples({
  seed,
  valSize,
  screen,
}: Pick<SearchSettings, 'seed' | 'valSize' | 'screen'>): number[] {
  if (screen === null) return allExamples({ valSize });
  return permutation(valSize, seed, 'gepa', 'screen')
    .slice(0, screen)
    .sort((a, b) => a - b);
}

export function allExamples({ valSize }: Pick<SearchSettings, 'valSize'>): number[] {
  return Array.from({ length: valSize }, (_, example) => example);
}

/** Each candidate's average over the common examples. */
export function screenedAverages({ settings, candidates }: SearchState): number[] {
  const screened = screenedExamples(settings);
  return candidates.map(({ scores }) => average(screened.map((example) => scores[example] ?? null)));
}

/** Fronts over the common examples: scores on further ones give a candidate no front of its own. */
export function screenedFronts({ settings, candidates }: SearchState): Fronts {
  return frontsOf(settings.frontier, candidates, screenedExamples(settings));
}

/**
 * Index of the best candidate. Until the end the screen decides; then the candidates with most examples are compared.
 * The start is the best unless another one is above it, example by example, by more than the required standard errors.
 */
export function bestOf(state: SearchState): number {
  const { settings, candidates, phase } = state;
  const isEnd = phase === 'done';
  const examples = isEnd ? allExamples(settings) : screenedExamples(settings);
  const [start, ...others] = candidates;
  const lead = isEnd ? (settings.final?.lead ?? 0) : 0;
  const rivals = (isEnd ? fullyScored(others, settings) : others).filter((other) =>
    isAbove(differencesOf(start!, other, examples), lead),
  );
  if (rivals.length === 0) return 0;
  const scores = candidates.map((candidate) =>
    rivals.includes(candidate) ? examples.map((example) => candidate.scores[example] ?? null) : [],
  );
  return bestByAverage(scores, settings);
}

/** Candidates with the most scored examples: one with missing rollouts could win by the luck of a few. */
function fullyScored(candidates: readonly Candidate[], { valSize }: SearchSettings): Candidate[] {
  const coverage = candidates.map(({ scores }) => scores.filter((score) => score !== null).length);
  const most = Math.max(valSize / 2, ...coverage);
  return candidates.filter((_, i) => coverage[i]! >= most);
}

function differencesOf(before: Candidate, after: Candidate, examples: readonly number[]): number[] {
  return examples.flatMap((example) => {
    const [was, is] = [before.scores[example] ?? null, after.scores[example] ?? null];
    return was === null || is === null ? [] : [is - was];
  });
}

/** Whether the mean of differences is above 0 by more than so many standard errors. */
function isAbove(differences: readonly number[], standardErrors: number): boolean {
  const mean = average(differences);
  const squares = differences.reduce((sum, difference) => sum + (difference - mean) ** 2, 0);
  const count = differences.length;
  return mean > standardErrors * Math.sqrt(squares / Math.max(1, count - 1) / count) && mean > 0;
}

/** Index of the highest average; among equals the one scored on more examples, then by {@link ofEquals}. */
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
 * Compares indices of equal candidates. If there is a screen, the later one comes first: it descends from the others, and was
 * better than its parent on a minibatch outside the screen. Otherwise the first one, as in gepa.
 */
export function ofEquals({ screen }: Pick<SearchSettings, 'screen'>): (a: number, b: number) => number {
  return (a, b) => (screen === null ? a - b : b - a);
}
