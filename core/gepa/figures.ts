import { callsMade } from './budget.ts';
import { average, withoutDominated } from './fronts.ts';
import type { PromptSearchEvent, SearchFigures, SearchInPlay } from './prompt-search.ts';
import { next } from './search.ts';
import type { Candidate, EvaluateRequest, SearchEvent, SearchRequest, SearchState } from './search-state.ts';
import { bestOf, screenedAverages, screenedFronts } from './standing.ts';

/** State of a search for people. `leftOf`: rollouts of a request still awaited; all if unknown. */
export function searchFigures(
  state: SearchState,
  leftOf: (request: EvaluateRequest) => number = ({ examples }) => examples.length,
): SearchFigures {
  const { candidates, settings } = state;
  const best = bestOf(state);
  const found = candidates[best];
  return {
    phase: state.phase,
    calls: callsMade(state),
    maxCalls: settings.maxCalls,
    reflections: state.reflections,
    iterations: state.begun,
    candidates: candidates.length,
    best: Math.max(0, best),
    bestScore: found === undefined ? null : finiteOrNull(average(found.scores)),
    bestCoverage: found?.scores.filter((score) => score !== null).length ?? 0,
    startScore: found === undefined ? null : besideStart(candidates, found).start,
    startCoverage: found === undefined ? 0 : besideStart(candidates, found).examples,
    front: frontOf(state),
    stopReason: state.stopReason,
    waitingOn: waitsFor(next(state), leftOf),
  };
}

/** Work in flight, in words. */
export function inPlayText({ leases, rollouts, waiting, reflections }: SearchInPlay): string {
  const of = leases === 1 ? '1 lease' : `${leases} leases`;
  const what = [
    ...(rollouts === 0 ? [] : [rollouts === 1 ? '1 rollout' : `${rollouts} rollouts`]),
    ...(reflections === 0 ? [] : [reflections === 1 ? '1 reflection' : `${reflections} reflections`]),
  ];
  return `${what.join(' and ')} in ${of}${waiting === 0 ? '' : `, ${waiting} wait for their turn`}`;
}

/** Work in flight of a branch of a run, whose winner is tried after its search; null: none. */
export function branchInPlayText(of: {
  readonly search?: SearchInPlay | undefined;
  readonly trial?: SearchInPlay | undefined;
}): string | null {
  const { search, trial } = of;
  if (trial !== undefined && trial.leases > 0) return `${inPlayText(trial)}, to try what was found`;
  return search === undefined || search.leases === 0 ? null : inPlayText(search);
}

/** Candidates that are best at something and not redundant; ascending. */
function frontOf(state: SearchState): number[] {
  if (state.candidates.length === 0) return [];
  const fronts = withoutDominated(screenedFronts(state), screenedAverages(state));
  return [...new Set([...fronts.values()].flat())].sort((a, b) => a - b);
}

/** The means of the start and of another candidate over their common examples, and the number of these. */
export function besideStart(
  candidates: readonly Candidate[],
  { scores }: Candidate,
): { readonly start: number | null; readonly other: number | null; readonly examples: number } {
  const start = candidates[0]!.scores;
  const both = scores.flatMap((score, i) => (score !== null && start[i] != null ? [i] : []));
  const meanOf = (of: Candidate['scores']) => finiteOrNull(average(both.map((i) => of[i]!)));
  return { start: meanOf(start), other: meanOf(scores), examples: both.length };
}

function finiteOrNull(value: number): number | null {
  return Number.isFinite(value) ? value : null;
}

/** Open requests in words, grouped by kind. */
function waitsFor(requests: readonly SearchRequest[], leftOf: (request: EvaluateRequest) => number): string[] {
  const counts = new Map<string, number>();
  for (const request of requests) {
    const what = wordsOf(request);
    const count = request.kind === 'evaluate' ? leftOf(request) : 1;
    counts.set(what, (counts.get(what) ?? 0) + count);
  }
  return [...counts].map(([what, count]) => what.replace('#', String(count)));
}

/** Description of a request's leases; `count`: their number. */
export function leaseWords(request: SearchRequest, count: string): string {
  return wordsOf(request).replace('#', count);
}

function wordsOf(request: SearchRequest): string {
  const { iteration } = request;
  if (request.kind === 'reflect') return `# reflections of iteration ${iteration}`;
  switch (request.purpose) {
    case 'start':
      return '# rollouts of the first prompt';
    case 'parent':
      return `# rollouts of the prompt that iteration ${iteration} begins from`;
    case 'child':
    case 'merge':
      return `# rollouts of proposals of iteration ${iteration}`;
    case 'validation':
      return `# validation rollouts of iteration ${iteration}`;
    case 'final':
      return '# further validation rollouts of the best prompts';
    default:
      return request.purpose satisfies never;
  }
}

/**
 * Messages about the events of a search, in the form in which they are counted. `state` is the state after the events.
 */
export function tellings(
  events: readonly SearchEvent[],
  state: SearchState,
): Pick<PromptSearchEvent, 'kind' | 'text' | 'values'>[] {
  const { candidates, settings } = state;
  const calls = callsMade(state);
  const used = `calls ${calls} of ${settings.maxCalls}`;
  return events.flatMap((event): Pick<PromptSearchEvent, 'kind' | 'text' | 'values'>[] => {
    if (event.kind === 'iteration_given_up') {
      const text = `iteration ${event.iteration} abandoned: its rollouts failed through infrastructure  ${used}`;
      return [{ kind: 'given-up', text, values: { iteration: event.iteration, calls } }];
    }
    if (event.kind === 'candidate_rejected' && event.why === 'no_text') {
      const text = `iteration ${event.iteration}: a reflection gave nothing that could be a prompt  ${used}`;
      return [{ kind: 'warning', text, values: { iteration: event.iteration, calls } }];
    }
    if (event.kind !== 'valset_evaluated') return [];
    const { candidate, average: score, iteration } = event;
    const { parents, scores } = candidates[candidate]!;
    const coverage = scores.filter((one) => one !== null).length;
    const on = coverage === settings.valSize ? `${coverage}` : `${coverage} of ${settings.valSize}`;
    const values = { candidate, iteration, score, coverage, calls };
    if (iteration < 0)
      return [{ kind: 'start', text: `start: score ${score.toFixed(3)} on ${on} examples  ${used}`, values }];
    const from = parents.length === 1 ? `candidate ${parents[0]}` : `candidates ${parents.join(' and ')}`;
    const averages = screenedAverages(state);
    const isBest = averages.every((other, i) => i === candidate || other < averages[candidate]!);
    const text = `candidate ${candidate} from ${from}: score ${score.toFixed(3)} on ${on}${isBest ? ', the best so far' : ''}  ${used}  front ${frontOf(state).join(' ')}`;
    return [{ kind: 'candidate', text, values: { ...values, parents: parents.join(','), is_best: Number(isBest) } }];
  });
}
