import { randomStream } from '../random.ts';
import { total } from './acceptance.ts';
import { callsFree, callsMade, reflectionsFree } from './budget.ts';
import { selectComponents } from './components.ts';
import { knownEvaluation, newEvaluation } from './evaluation.ts';
import { withoutDominated } from './fronts.ts';
import { acceptedChildren, callsAhead } from './iteration.ts';
import { drawSubsample, findMerge, marksOf } from './merge.ts';
import { minibatchAt } from './minibatch.ts';
import { selectCandidate } from './select-candidate.ts';
import { screenedAverages, screenedExamples, screenedFronts } from './standing.ts';
import type { Candidate, Child, Iteration, SearchState } from './search-state.ts';

/** Begins the next iteration if the budget suffices for it. All draws are keyed by the seed and its number. */
export function beginIteration(state: SearchState): boolean {
  const merge = beginMerge(state);
  if (merge !== null) return merge;
  const { settings, candidates, begun: number } = state;
  const random = randomStream(settings.seed, 'gepa', 'candidate', number);
  const averages = screenedAverages(state);
  const validated = childInValidation(state);
  const selected =
    validated === null
      ? selectCandidate(settings.candidateSelection, screenedFronts(state), averages, random)
      : candidates.length;
  const parent: Candidate | Child = validated ?? candidates[selected]!;
  const texts = parent.texts!;
  const { components, turn } = selectComponents(settings.componentSelection, { texts, turn: parent.turn });
  const proposals = Math.min(settings.proposals, Math.floor(reflectionsFree(state) / components.length));
  // An iteration in progress may leave some over, so the number of free ones is known only once none is in progress, in
  // any order of answers.
  if (proposals < settings.proposals && state.iterations.length > 0) return false;
  if (proposals < 1) {
    state.stopReason = 'max_reflections';
    return false;
  }
  const known = isWorthReflecting(state, parent.minibatch) ? parent.minibatch : null;
  const before =
    known === null
      ? newEvaluation(`${number}.parent`, 'train', minibatchAt(state.drawn, sampled(state), settings.seed))
      : knownEvaluation(`${number}.parent`, known);
  const iteration = newIteration(state, {
    kind: 'reflect',
    parents: [selected],
    texts,
    components,
    before,
    mergeFloor: null,
    ...(proposals < settings.proposals ? { proposals } : {}),
  });
  if (!setAside(state, iteration)) return false;
  parent.turn = turn;
  if (known === null) state.drawn += 1;
  else parent.minibatch = null;
  state.events.push(
    { kind: 'iteration_start', iteration: number },
    { kind: 'candidate_selected', iteration: number, candidate: selected },
    { kind: 'minibatch_sampled', iteration: number, examples: before.examples },
  );
  if (known === null) state.events.push({ kind: 'evaluation_start', iteration: number });
  return true;
}

/** The first child that is being validated, when there is something to learn from its minibatch. It will be the next candidate. */
function childInValidation(state: SearchState): Child | null {
  const [first] = state.iterations;
  if (first?.stage !== 'validate' || first.outcome !== null) return null;
  const child = acceptedChildren(first)[0]!;
  return isWorthReflecting(state, child.minibatch) ? child : null;
}

/** A merge in place of a reflection, once after each new candidate while merges are due. null: none is possible. */
function beginMerge(state: SearchState): boolean | null {
  const { settings, merging, candidates, begun: number } = state;
  if (settings.merge === null || merging.due <= 0 || !merging.isReady) return null;
  const random = randomStream(settings.seed, 'gepa', 'merge', number);
  const fronts = withoutDominated(screenedFronts(state), screenedAverages(state));
  const pool = [...new Set([...fronts.values()].flat())].sort((a, b) => a - b);
  const merge = findMerge(candidates, pool, settings.merge, merging.seen, random);
  if (merge === null) {
    merging.isReady = false;
    return null;
  }
  const [a, b] = merge.parents.map((parent) => candidates[parent]!.scores) as [(number | null)[], (number | null)[]];
  const subsample = drawSubsample(a, b, settings.merge.subsample, random);
  const sums = [a, b].map((scores) => total(subsample.map((example) => scores[example]!)));
  const iteration = newIteration(state, {
    kind: 'merge',
    parents: merge.parents,
    texts: merge.texts,
    components: [],
    before: null,
    mergeFloor: Math.max(...sums),
  });
  const after = newEvaluation(`${number}.merge`, 'val', subsample);
  iteration.children.push({
    reflections: [],
    texts: merge.texts,
    turn: 0,
    minibatch: null,
    after,
    validation: null,
    outcome: null,
  });
  iteration.stage = 'after';
  if (!setAside(state, iteration)) return false;
  merging.isReady = false;
  merging.seen.push(...marksOf(merge));
  state.events.push(
    { kind: 'iteration_start', iteration: number },
    { kind: 'merge_attempted', iteration: number, parents: merge.parents },
    { kind: 'evaluation_start', iteration: number },
  );
  return true;
}

function newIteration(
  state: SearchState,
  given: Pick<Iteration, 'kind' | 'parents' | 'texts' | 'components' | 'before' | 'mergeFloor' | 'proposals'>,
): Iteration {
  return {
    ...given,
    number: state.begun,
    reserved: 0,
    paid: 0,
    paidBeforeValidation: 0,
    known: state.tried.length,
    stage: 'before',
    children: [],
    outcome: null,
  };
}

/** Reserves the most that the iteration can cost and starts it; false if the budget lacks it. */
function setAside(state: SearchState, iteration: Iteration): boolean {
  const { settings } = state;
  const reserved = callsAhead(iteration, settings, screenedExamples(settings).length);
  const isFree = settings.overshoots ? callsMade(state) < settings.maxCalls : reserved <= callsFree(state);
  if (!isFree) return false;
  iteration.reserved = reserved;
  state.iterations.push(iteration);
  state.begun += 1;
  return true;
}

/** False if every score equals the highest seen so far. */
function isWorthReflecting(
  { settings, candidates }: SearchState,
  minibatch: Candidate['minibatch'],
): minibatch is NonNullable<Candidate['minibatch']> {
  if (!settings.reusesMinibatch || minibatch === null) return false;
  const seen = [...candidates.flatMap(({ scores }) => scores), ...minibatch.map(({ score }) => score)];
  const highest = settings.perfectScore ?? Math.max(...seen.map((score) => score ?? -Infinity));
  return minibatch.some(({ score }) => score < highest);
}

function sampled({ settings }: SearchState): { size: number; minibatchSize: number } {
  return { size: settings.trainSize, minibatchSize: settings.minibatchSize };
}
