import { average, withoutDominated } from './fronts.ts';
import { acceptedChildren, mark } from './iteration.ts';
import { screenedAverages, screenedFronts } from './standing.ts';
import type { Candidate, Child, Evaluation, Iteration, SearchState } from './search-state.ts';

/** Commits an iteration's result to the search: its cost, its texts, its accepted candidates. In order of number. */
export function commitIteration(state: SearchState, iteration: Iteration): void {
  const { number, kind, outcome, paid } = iteration;
  const bestBefore = Math.max(...screenedAverages(state));
  const callsBefore = state.spent + iteration.paidBeforeValidation;
  state.spent += paid;
  state.idle = paid === 0 ? state.idle + 1 : 0;
  const isAccepted = outcome === 'finished' && acceptedChildren(iteration).length > 0;
  state.rejectedInARow = isAccepted ? 0 : state.rejectedInARow + 1;
  if (outcome === 'finished') {
    const isMerge = kind === 'merge';
    for (const child of acceptedChildren(iteration)) {
      const candidate = addChild(state, iteration, child, callsBefore);
      state.events.push({ kind: isMerge ? 'merge_accepted' : 'candidate_accepted', iteration: number, candidate });
      countForMerging(state, kind);
    }
    const turnedDown = iteration.children.find((child) => child.outcome !== 'accepted');
    if (acceptedChildren(iteration).length === 0 && turnedDown?.outcome != null)
      state.events.push({
        kind: isMerge ? 'merge_rejected' : 'candidate_rejected',
        iteration: number,
        why: turnedDown.outcome,
      });
  }
  if (state.settings.skipsTried)
    for (const { texts } of iteration.children) if (texts !== null) state.tried.push(mark(texts));
  state.sinceImprovement = Math.max(...screenedAverages(state)) > bestBefore ? 0 : state.sinceImprovement + 1;
  if (outcome === 'given_up') leaveToParents(state, iteration);
  state.events.push({ kind: 'iteration_end', iteration: number });
}

/** Adds a validated candidate and returns its index. */
export function addCandidate(
  state: SearchState,
  found: Omit<Candidate, 'scores' | 'objectives'> & { readonly validation: Evaluation },
): number {
  const { texts, parents, iteration, callsBefore, turn, minibatch, validation } = found;
  const scores: (number | null)[] = Array.from({ length: state.settings.valSize }, () => null);
  const objectives: Record<string, (number | null)[]> = {};
  for (const [i, example] of validation.examples.entries()) {
    scores[example] = validation.scores[i]!;
    for (const [name, value] of Object.entries(validation.objectives[i] ?? {})) {
      objectives[name] ??= scores.map(() => null);
      objectives[name][example] = value;
    }
  }
  state.candidates.push({ texts, parents, iteration, scores, objectives, callsBefore, turn, minibatch });
  if (state.settings.skipsTried && iteration < 0) state.tried.push(mark(texts));
  const candidate = state.candidates.length - 1;
  const averages = screenedAverages(state);
  const front = [...new Set([...withoutDominated(screenedFronts(state), averages).values()].flat())];
  if (iteration >= 0)
    state.events.push({ kind: 'pareto_front_updated', iteration, front: front.sort((a, b) => a - b) });
  state.events.push({ kind: 'valset_evaluated', iteration, candidate, average: average(scores) });
  return candidate;
}

function addChild(state: SearchState, iteration: Iteration, child: Child, callsBefore: number): number {
  const { number, parents } = iteration;
  const { texts, turn, minibatch, validation } = child;
  return addCandidate(state, {
    texts: texts!,
    parents,
    iteration: number,
    callsBefore,
    turn,
    minibatch,
    validation: validation!,
  });
}

/** Descendants of a child that could not be validated count as descendants of its parents. */
function leaveToParents({ iterations, candidates }: SearchState, { parents }: Iteration): void {
  for (const other of iterations)
    if (other.parents.some((parent) => parent >= candidates.length)) other.parents = parents;
}

function countForMerging({ settings, merging }: SearchState, kind: Iteration['kind']): void {
  if (settings.merge === null) return;
  if (kind === 'merge') {
    merging.due -= 1;
    merging.accepted += 1;
    return;
  }
  merging.isReady = true;
  if (merging.accepted < settings.merge.maxInvocations) merging.due += 1;
}
