import { beginIteration } from './begin-iteration.ts';
import { callsFree, callsMade } from './budget.ts';
import { addCandidate, commitIteration } from './commit.ts';
import { isComplete, newEvaluation } from './evaluation.ts';
import { average } from './fronts.ts';
import { advance, evaluationsOf, isJudgeable, judge } from './iteration.ts';
import { ofEquals, screenedAverages, screenedExamples } from './standing.ts';
import { metCondition } from './stop.ts';
import { callsShort, giveUp } from './take-answer.ts';
import type { FinalSettings, SearchEvent, SearchState } from './search-state.ts';

/**
 * Advances the search as far as its answers allow, in place. An iteration begins only when another was committed, and
 * commits are in order, so its start does not depend on the order of answers.
 */
export function goOn(state: SearchState): void {
  while (step(state));
}

/** Does one thing that needs no further answer; false when there is none. */
function step(state: SearchState): boolean {
  switch (state.phase) {
    case 'start':
      return afterStart(state);
    case 'search':
      return search(state);
    case 'final':
      return afterFinals(state);
    case 'done':
      return false;
    default:
      return state.phase satisfies never;
  }
}

function afterStart(state: SearchState): boolean {
  const { evaluation, texts } = state.start;
  if (evaluation.isOpen) return false;
  if (!isComplete(evaluation)) {
    state.stopReason = 'start_not_evaluated';
    return end(state);
  }
  addCandidate(state, {
    texts,
    parents: [],
    iteration: -1,
    callsBefore: 0,
    turn: 0,
    minibatch: null,
    validation: evaluation,
  });
  state.phase = 'search';
  return true;
}

function search(state: SearchState): boolean {
  const { settings, candidates, tried, iterations } = state;
  const emit = (event: SearchEvent): void => void state.events.push(event);
  for (const iteration of iterations) advance(iteration, { settings, tried, emit });
  if (begin(state)) return true; // after one judgement or commit and before the next, so that nothing depends on how many can be done at once
  const [first] = iterations;
  if (first?.stage === 'done') {
    iterations.shift();
    commitIteration(state, first);
    return true;
  }
  if (first !== undefined && isJudgeable(first)) {
    judge(first, { settings, tried, emit, candidates, screened: screenedExamples(settings) });
    return true;
  }
  if (first !== undefined) return askForMore(state);
  return beginFinals(state);
}

function begin(state: SearchState): boolean {
  const { iterations, settings, rejectedInARow } = state;
  const looking = settings.overlapsValidation ? iterations.filter(({ stage }) => stage !== 'validate') : iterations;
  const { parallel, parallelMax = parallel } = settings;
  if (looking.length >= Math.max(parallel, Math.min(parallelMax, parallel + rejectedInARow))) return false;
  state.stopReason ??= reasonToStop(state);
  return state.stopReason === null && beginIteration(state);
}

function reasonToStop(state: SearchState): SearchState['stopReason'] {
  const { settings, idle, begun, candidates, sinceImprovement } = state;
  if (idle >= settings.idleIterationsMax) return 'idle';
  const bestScore = Math.max(...screenedAverages(state));
  const progress = { iteration: begun - 1, bestScore, candidates: candidates.length, sinceImprovement };
  return metCondition(settings.stop, progress);
}

/** The next iteration to commit may take more calls than its reservation: some were spent in vain. */
function askForMore(state: SearchState): boolean {
  const first = state.iterations[0]!;
  const evaluations = evaluationsOf(first);
  const waiting = evaluations.filter((evaluation) => !isComplete(evaluation));
  if (waiting.length === 0 || first.outcome !== null || evaluations.some(({ isOpen }) => isOpen)) return false;
  const short = callsShort(state, first);
  if (short > callsFree(state)) giveUp(state, first);
  else {
    first.reserved += Math.max(0, short);
    for (const evaluation of waiting) evaluation.isOpen = true;
  }
  return true;
}

/**
 * Scores the best candidates of the common examples further: first on some examples if the search has a heat, else on
 * the rest.
 */
function beginFinals(state: SearchState): boolean {
  const { settings } = state;
  state.stopReason ??= 'budget';
  state.phase = 'final';
  const averages = screenedAverages(state);
  const order = ofEquals(settings);
  const ranked = averages.map((_, i) => i).sort((a, b) => averages[b]! - averages[a]! || order(a, b));
  if (settings.final === undefined || settings.final.candidates === 1) scoreTheRest(state, ranked);
  else beginHeat(state, ranked, settings.final);
  return true;
}

/** Leaves the best of the heat enough calls for the rest. */
function beginHeat(state: SearchState, ranked: readonly number[], { candidates, examples }: FinalSettings): void {
  const open = ranked.filter((candidate) => unscored(state, candidate).length > 0);
  for (const candidate of open.slice(0, candidates)) {
    const rest = unscored(state, candidate);
    const some = rest.slice(0, examples);
    const forTheBest = rest.length - some.length;
    if (some.length + forTheBest > callsFree(state)) break;
    addFinal(state, candidate, some, { isHeat: true });
  }
}

/** Scores the remaining validation examples of as many candidates as the budget allows. */
function scoreTheRest(state: SearchState, ranked: readonly number[]): void {
  for (const candidate of ranked) {
    const rest = unscored(state, candidate);
    if (rest.length === 0) continue;
    if (rest.length > callsFree(state)) break;
    addFinal(state, candidate, rest, {});
  }
}

function addFinal(
  state: SearchState,
  candidate: number,
  examples: readonly number[],
  kind: { readonly isHeat?: true },
): void {
  const id = `final.${candidate}.${callsMade(state)}${kind.isHeat ? '.heat' : ''}`;
  state.finals.push({ candidate, evaluation: newEvaluation(id, 'val', examples), reserved: examples.length, ...kind });
}

function unscored({ candidates }: SearchState, candidate: number): number[] {
  return candidates[candidate]!.scores.flatMap((score, example) => (score === null ? [example] : []));
}

function afterFinals(state: SearchState): boolean {
  const { finals, candidates } = state;
  if (finals.some(({ evaluation }) => evaluation.isOpen)) return false;
  for (const { candidate, evaluation } of finals) {
    const { scores } = candidates[candidate]!;
    for (const [i, example] of evaluation.examples.entries()) scores[example] = evaluation.scores[i]!;
  }
  const heat = finals.filter(({ isHeat }) => isHeat);
  if (heat.length === 0) return end(state);
  const scoreOf = (candidate: number): number => average(candidates[candidate]!.scores);
  const ranked = heat.map(({ candidate }) => candidate).toSorted((a, b) => scoreOf(b) - scoreOf(a));
  state.finals = [];
  scoreTheRest(state, ranked);
  return true;
}

function end(state: SearchState): boolean {
  state.phase = 'done';
  state.events.push({ kind: 'optimization_end', reason: state.stopReason! });
  return true;
}
