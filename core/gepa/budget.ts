import type { Reflection, SearchSettings, SearchState } from './search-state.ts';

export function callsMade({ spent, iterations }: SearchState): number {
  return iterations.reduce((sum, { paid }) => sum + paid, spent);
}

/**
 * Texts that a new iteration may request. Each iteration in progress counts with its full reservation, whatever has
 * arrived: otherwise the search would depend on the order of answers.
 */
export function reflectionsFree({ settings, reflections, iterations }: SearchState): number {
  const { maxReflections = Infinity, countsTextsOnce } = settings;
  const isWritten = ({ text, isAnswered, isFailed }: Reflection): boolean =>
    countsTextsOnce ? isAnswered && !isFailed : text !== null;
  const aside = iterations.map(({ components, children, proposals = settings.proposals }) => {
    const written = children.flatMap(({ reflections }) => reflections).filter(isWritten);
    return proposals * components.length - written.length;
  });
  return maxReflections - reflections - aside.reduce((sum, count) => sum + count, 0);
}

/** Calls that are neither made nor reserved, for open requests or for validating the best at the end. */
export function callsFree(state: SearchState): number {
  const { settings, spent, start, iterations, finals, phase } = state;
  const { maxCalls } = settings;
  const forTheBest = phase === 'final' || phase === 'done' ? 0 : callsOfTheEnd(settings);
  const aside = [...iterations, ...finals, start].reduce((sum, { reserved }) => sum + reserved, 0);
  return maxCalls - spent - aside - forTheBest;
}

/** Calls that the end takes: the best candidates beyond the screen, the best of them on all that is left. */
function callsOfTheEnd({ valSize, screen, final }: Pick<SearchSettings, 'valSize' | 'screen' | 'final'>): number {
  if (screen === null) return 0;
  const rest = valSize - screen;
  if (final === undefined) return rest;
  return rest + (final.candidates - 1) * Math.min(final.examples, rest);
}
