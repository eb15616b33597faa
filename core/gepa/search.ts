import { average } from './fronts.ts';
import { callsFree, callsMade } from './budget.ts';
import { goOn } from './drive.ts';
import { evaluateRequest, newEvaluation } from './evaluation.ts';
import { openRequests } from './iteration.ts';
import { allExamples, bestOf, screenedExamples } from './standing.ts';
import { takeAnswer } from './take-answer.ts';
import type {
  EvaluateRequest,
  SearchAnswer,
  SearchRequest,
  SearchResult,
  SearchSettings,
  SearchState,
  SingleEvaluation,
  Texts,
} from './search-state.ts';

/** The initial state, without requests. */
export function startSearch(settings: SearchSettings, start: Texts): SearchState {
  if (Object.keys(start).length === 0) throw new Error('A prompt search needs at least one component to write anew.');
  const first = settings.final === undefined ? screenedExamples(settings) : allExamples(settings);
  return {
    form: 1,
    settings,
    phase: 'start',
    spent: 0,
    candidates: [],
    start: { texts: start, evaluation: newEvaluation('start', 'val', first), reserved: first.length },
    iterations: [],
    begun: 0,
    drawn: 0,
    reflections: 0,
    tried: [],
    merging: { due: 0, accepted: 0, isReady: false, seen: [] },
    idle: 0,
    sinceImprovement: 0,
    rejectedInARow: 0,
    stopReason: null,
    finals: [],
    events: [{ kind: 'optimization_start' }],
  };
}

/**
 * Every open request: not answered yet, its calls reserved. The caller keeps the ids in progress and starts the others;
 * after a crash it starts all. None: the search is over. Any number may be in progress, and answers may come in any
 * order, with the same result.
 */
export function next(state: SearchState): readonly SearchRequest[] {
  const { settings, phase, start, candidates, iterations, finals, begun } = state;
  const single = (
    purpose: EvaluateRequest['purpose'],
    iteration: number,
    texts: Texts,
    { evaluation }: SingleEvaluation,
  ): SearchRequest[] =>
    evaluation.isOpen ? [evaluateRequest(evaluation, { iteration, purpose, texts, seed: settings.seed })] : [];
  switch (phase) {
    case 'start':
      return single('start', -1, start.texts, start);
    case 'search':
      return iterations.flatMap((iteration) => openRequests(iteration, settings));
    case 'final':
      return finals.flatMap((final) => single('final', begun, candidates[final.candidate]!.texts, final));
    case 'done':
      return [];
    default:
      return phase satisfies never;
  }
}

/** The state after some answers. The given state is not changed. Throws for an answer that fits no open request. */
export function settle(state: SearchState, answers: readonly SearchAnswer[]): SearchState {
  const after = copy(state);
  for (const answer of answers) takeAnswer(after, answer);
  goOn(after);
  return after;
}

/** Starts no further iteration; those in progress are finished, and the best is validated. */
export function askToStop(state: SearchState): SearchState {
  const after = copy(state);
  after.stopReason ??= 'asked';
  if (after.phase === 'search') goOn(after);
  return after;
}

/** Sets the budget, at least to the spent and reserved calls. A search that had used up its budget continues. */
export function changeBudget(state: SearchState, maxCalls: number): SearchState {
  const after = copy(state);
  const { maxCalls: before, maxReflections } = after.settings;
  const changed = Math.max(maxCalls, before - callsFree(after));
  after.settings = {
    ...after.settings,
    maxCalls: changed,
    // More calls are meant for more texts.
    ...(maxReflections === undefined ? {} : { maxReflections: maxReflections + Math.max(0, changed - before) }),
  };
  if ((after.stopReason === 'budget' || after.stopReason === 'max_reflections') && after.phase === 'done') {
    after.phase = 'search';
    after.stopReason = null;
    after.finals = [];
    goOn(after);
  }
  return after;
}

/** The search's result, or the best so far. */
export function result(state: SearchState): SearchResult {
  const { candidates, start } = state;
  const best = bestOf(state);
  const scores = candidates[best]?.scores ?? [];
  const value = average(scores);
  return {
    isFinished: state.phase === 'done',
    stopReason: state.stopReason,
    best,
    texts: candidates[best]?.texts ?? start.texts,
    score: value === -Infinity ? null : value,
    coverage: scores.filter((score) => score !== null).length,
    calls: callsMade(state),
    reflections: state.reflections,
    candidates,
  };
}

function copy(state: SearchState): SearchState {
  return JSON.parse(JSON.stringify({ ...state, events: [] })) as SearchState;
}
