import type { SearchState } from './search-state.ts';

/** Metric calls that were made. */
export function callsMade({ spent, iterations }: SearchState): number {
  return iterations.reduce((sum, { paid }) => sum + paid, spent);
}

/** Calls that are neither made nor set aside: for requests that are out, and for validating the best at the end. */
export function callsFree(state: SearchState): number {
  const { settings, spent, start, iterations, finals, phase } = state;
  const { maxCalls, valSize, screen } = settings;
  const forTheBest = screen === null || phase === 'final' || phase === 'done' ? 0 : valSize - screen;
  const aside = [...iterations, ...finals, start].reduce((sum, { reserved }) => sum + reserved, 0);
  return maxCalls - spent - aside - forTheBest;
}
