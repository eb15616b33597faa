import { callsFree, callsMade } from './budget.ts';
import { attemptId, isComplete, missing, requirePaid, takeScores } from './evaluation.ts';
import { callsAhead, evaluationsOf } from './iteration.ts';
import { screenedExamples } from './standing.ts';
import type { Evaluation, Iteration, Reflection, SearchAnswer, SearchState, SingleEvaluation } from './search-state.ts';

/** Records one answer, in place. Consequences follow in `goOn`. */
export function takeAnswer(state: SearchState, answer: SearchAnswer): void {
  for (const single of [state.start, ...state.finals])
    if (isAsked(single.evaluation, answer)) return takeSingle(state, single, answer);
  for (const iteration of state.iterations) {
    for (const evaluation of evaluationsOf(iteration))
      if (isAsked(evaluation, answer)) return takeOfIteration(state, iteration, evaluation, answer);
    for (const reflection of iteration.children.flatMap(({ reflections }) => reflections))
      if (!reflection.isAnswered && attemptId(reflection) === answer.id)
        return takeText(state, iteration, reflection, answer);
  }
  throw new Error(`No request "${answer.id}" is open.`);
}

/** Calls that an iteration would need beyond its reservation. */
export function callsShort({ settings }: SearchState, iteration: Iteration): number {
  const ahead = callsAhead(iteration, settings, screenedExamples(settings).length);
  return iteration.paid + ahead - iteration.reserved;
}

export function giveUp(state: SearchState, iteration: Iteration): void {
  if (iteration.outcome !== null) return;
  iteration.outcome = 'given_up';
  state.events.push({ kind: 'iteration_given_up', iteration: iteration.number });
}

function isAsked(evaluation: Evaluation, { id }: SearchAnswer): boolean {
  return evaluation.isOpen && attemptId(evaluation) === id;
}

/**
 * The best's final evaluation may take free calls; nothing competes with it, so the order of answers does not matter.
 */
function takeSingle(state: SearchState, single: SingleEvaluation, answer: SearchAnswer): void {
  const { evaluation } = single;
  const paid = fill(evaluation, answer);
  single.reserved -= paid;
  state.spent += paid;
  if (single !== state.start) tellBudget(state, paid);
  const open = missing(evaluation);
  if (open > 0 && evaluation.attempt < state.settings.attemptsMax) {
    const short = open - single.reserved;
    const mayTakeMore = single === state.start || single === state.finals[0];
    if (short > 0 && mayTakeMore && short <= callsFree(state)) single.reserved += short;
    if (open <= single.reserved) {
      evaluation.attempt += 1;
      evaluation.isOpen = true;
    }
  }
  // The remainder of the last ones is not redistributed: that would depend on the order of arrival.
  if (!evaluation.isOpen && single === state.start) single.reserved = 0;
}

function takeOfIteration(state: SearchState, iteration: Iteration, evaluation: Evaluation, answer: SearchAnswer): void {
  const paid = fill(evaluation, answer);
  iteration.paid += paid;
  tellBudget(state, paid);
  const evaluations = evaluationsOf(iteration);
  if (iteration.outcome === null && !evaluations.some(({ isOpen }) => isOpen)) askAgain(state, iteration);
}

/**
 * Requests missing scores again after all answers came: at once if the calls are still reserved, else when the
 * iteration is next to commit (`askForMore`).
 */
function askAgain(state: SearchState, iteration: Iteration): void {
  const { settings } = state;
  const incomplete = evaluationsOf(iteration).filter((evaluation) => !isComplete(evaluation));
  if (incomplete.some(({ attempt }) => attempt >= settings.attemptsMax)) return giveUp(state, iteration);
  const isOpen = settings.overshoots || callsShort(state, iteration) <= 0;
  for (const evaluation of incomplete) {
    evaluation.attempt += 1;
    evaluation.isOpen = isOpen;
  }
}

function takeText(state: SearchState, iteration: Iteration, reflection: Reflection, answer: SearchAnswer): void {
  if (answer.kind === 'scores') throw new Error(`Request ${answer.id} asked for a text and was answered with scores.`);
  if (answer.kind === 'failed') {
    requirePaid(answer.id, answer.paid, 0);
    const isLast = reflection.attempt >= state.settings.attemptsMax || iteration.outcome !== null;
    if (!isLast) reflection.attempt += 1;
    else reflection.isFailed = reflection.isAnswered = true;
    return;
  }
  reflection.isAnswered = true;
  reflection.text = answer.text;
  state.reflections += 1;
}

/** Records the scores and returns their cost. */
function fill(evaluation: Evaluation, answer: SearchAnswer): number {
  if (answer.kind === 'text') throw new Error(`Request ${answer.id} asked for scores and was answered with a text.`);
  requirePaid(answer.id, answer.paid, missing(evaluation));
  if (answer.kind === 'scores') takeScores(evaluation, answer);
  evaluation.isOpen = false;
  return answer.paid;
}

function tellBudget(state: SearchState, paid: number): void {
  if (paid === 0) return;
  const used = callsMade(state);
  const remaining = Math.max(0, state.settings.maxCalls - used);
  state.events.push({ kind: 'budget_updated', used, delta: paid, remaining });
}
