import { turnOfChild, isSameTexts } from './components.ts';
import { tracesOf } from './evaluation.ts';
import { average, withoutDominated } from './fronts.ts';
import { acceptedChildren, mark } from './iteration.ts';
import { screenedAverages, screenedFronts } from './standing.ts';
import type { Candidate, Child, Evaluation, Iteration, SearchState, TraceRef } from './search-state.ts';

/** Puts what an iteration came to into the search: its cost, its texts, its accepted candidates. In the order of their numbers. */
export function commitIteration(state: SearchState, iteration: Iteration): void {
  const { number, kind, outcome, paid } = iteration;
  const bestBefore = Math.max(...screenedAverages(state));
  const callsBefore = state.spent + iteration.paidBeforeValidation;
  state.spent += paid;
  state.idle = paid === 0 ? state.idle + 1 : 0;
  if (outcome === 'finished') {
    dropAdded(state, iteration);
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
  state.events.push({ kind: 'iteration_end', iteration: number });
}

/** Adds a validated candidate and says where. */
export function addCandidate(
  state: SearchState,
  found: Pick<Candidate, 'texts' | 'parents' | 'iteration' | 'callsBefore'> & {
    readonly validation: Evaluation;
    readonly minibatch: readonly TraceRef[] | null;
  },
): number {
  const { texts, parents, iteration, callsBefore, validation, minibatch } = found;
  const scores: (number | null)[] = Array.from({ length: state.settings.valSize }, () => null);
  const objectives: Record<string, (number | null)[]> = {};
  for (const [i, example] of validation.examples.entries()) {
    scores[example] = validation.scores[i]!;
    for (const [name, value] of Object.entries(validation.objectives[i] ?? {})) {
      objectives[name] ??= scores.map(() => null);
      objectives[name][example] = value;
    }
  }
  const turn = turnOfChild(parents.map((parent) => state.candidates[parent]!));
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
  const { number, kind, parents } = iteration;
  const keeps = state.settings.reusesMinibatch && kind === 'reflect';
  return addCandidate(state, {
    texts: child.texts!,
    parents,
    iteration: number,
    callsBefore,
    validation: child.validation!,
    minibatch: keeps ? tracesOf(child.after!) : null,
  });
}

/** What another iteration has added meanwhile is not added twice. */
function dropAdded(state: SearchState, iteration: Iteration): void {
  if (!state.settings.skipsTried) return;
  for (const child of acceptedChildren(iteration))
    if (state.candidates.some(({ texts }) => isSameTexts(texts, child.texts!))) child.outcome = 'tried';
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
