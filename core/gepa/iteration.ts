import { hash32, uniform } from '../random.ts';
import { isAccepted, selectProposals, total } from './acceptance.ts';
import { isSameTexts, textToDigest, turnOfChild } from './components.ts';
import {
  evaluateRequest,
  isComplete,
  missing,
  newEvaluation,
  reflectRequest,
  scoresOf,
  tracesOf,
} from './evaluation.ts';
import type {
  Candidate,
  Child,
  Evaluation,
  EvaluateRequest,
  Iteration,
  Reflection,
  SearchEvent,
  SearchRequest,
  SearchSettings,
  Texts,
} from './search-state.ts';

/** Inputs of an iteration that do not depend on the order of answers. */
interface Around {
  readonly settings: SearchSettings;
  readonly tried: readonly string[];
  readonly emit: (event: SearchEvent) => void;
}

/** Most calls that an iteration can still take, beyond what it has paid. */
export function callsAhead(iteration: Iteration, settings: SearchSettings, screened: number): number {
  const { stage, before, children } = iteration;
  const selected = mostSelected(iteration, settings);
  const mostMissing = (evaluations: readonly (Evaluation | null)[]): number =>
    evaluations.reduce((sum, evaluation) => sum + (evaluation === null ? 0 : missing(evaluation)), 0);
  switch (stage) {
    case 'before':
    case 'reflect': {
      const open = stage === 'before' ? settings.proposals : children.filter(({ outcome }) => outcome === null).length;
      return mostMissing([before]) + open * settings.minibatchSize + Math.min(selected, open) * screened;
    }
    case 'after':
      return mostMissing(children.map(({ after }) => after)) + selected * screened;
    case 'validate':
      return mostMissing(children.map(({ validation }) => validation));
    case 'done':
      return 0;
    default:
      return stage satisfies never;
  }
}

function mostSelected({ kind, children }: Iteration, { proposals, proposalSelection }: SearchSettings): number {
  const open = children.length === 0 ? proposals : children.filter(({ outcome }) => outcome === null).length;
  if (kind === 'merge' || proposalSelection === 'all') return open;
  return Math.min(open, proposalSelection === 'best' ? 1 : proposalSelection.top);
}

/** Advances as far as its own answers allow: up to the judgement of its children, and from there to its end. */
export function advance(iteration: Iteration, around: Around): void {
  if (iteration.outcome === 'given_up' && openRequests(iteration, around.settings).length === 0)
    iteration.stage = 'done';
  if (iteration.outcome !== null) return;
  for (let stage: string | null = null; stage !== iteration.stage;) {
    stage = iteration.stage;
    if (stage === 'before') afterParent(iteration, around);
    if (stage === 'reflect') afterReflections(iteration, around);
    if (stage === 'validate' && validations(iteration).every(isComplete)) finish(iteration, 'finished');
  }
}

function finish(iteration: Iteration, outcome: 'perfect' | 'finished'): void {
  iteration.stage = 'done';
  iteration.outcome = outcome;
}

/** Children that were accepted, in their order. */
export function acceptedChildren({ children }: Iteration): Child[] {
  return children.filter(({ outcome }) => outcome === 'accepted');
}

function afterParent(iteration: Iteration, { settings, emit }: Around): void {
  const { before, number, components } = iteration;
  if (before === null || !isComplete(before)) return;
  const scores = scoresOf(before);
  emit({ kind: 'evaluation_end', iteration: number, sum: total(scores) });
  const { perfectScore } = settings;
  if (perfectScore !== null && scores.every((score) => score >= perfectScore)) {
    emit({ kind: 'evaluation_skipped', iteration: number });
    finish(iteration, 'perfect');
    return;
  }
  const { proposals = settings.proposals } = iteration;
  for (let child = 0; child < proposals; child++) {
    const reflections = components.map((component) =>
      newReflection(`${number}.reflect.${child}.${component}`, component),
    );
    iteration.children.push({
      reflections,
      texts: null,
      turn: 0,
      minibatch: null,
      after: null,
      validation: null,
      outcome: null,
    });
    emit({ kind: 'reflective_dataset_built', iteration: number });
    emit({ kind: 'proposal_start', iteration: number });
  }
  iteration.stage = 'reflect';
}

function newReflection(id: string, component: string): Reflection {
  return { id, component, attempt: 1, isAnswered: false, text: null };
}

function afterReflections(iteration: Iteration, around: Around): void {
  const { number, children, before } = iteration;
  if (!children.every(({ reflections }) => reflections.every(({ isAnswered }) => isAnswered))) return;
  for (const [i, child] of children.entries()) {
    readProposal(iteration, child, around);
    around.emit({ kind: 'proposal_end', iteration: number, outcome: child.outcome ?? 'new' });
    if (child.outcome !== null) continue;
    child.after = newEvaluation(`${number}.child.${i}`, 'train', before!.examples);
    around.emit({ kind: 'evaluation_start', iteration: number });
  }
  iteration.stage = 'after';
}

function readProposal(iteration: Iteration, child: Child, { settings, tried }: Around): void {
  const written = child.reflections.filter(({ text }) => text !== null);
  if (written.length === 0) {
    child.outcome = 'no_text';
    return;
  }
  const parent = iteration.texts;
  const texts = { ...parent, ...Object.fromEntries(written.map(({ component, text }) => [component, text!])) };
  child.texts = texts;
  if (settings.skipsUnchanged && isSameTexts(texts, parent)) child.outcome = 'unchanged';
  else if (settings.skipsTried && isKnown(iteration, child, tried)) child.outcome = 'tried';
}

/**
 * Whether the text was tried before this iteration began, or by an earlier child of it. Texts tried since by others do
 * not count: they depend on the order of answers.
 */
function isKnown({ known, children }: Iteration, child: Child, tried: readonly string[]): boolean {
  if (tried.lastIndexOf(mark(child.texts!), known - 1) >= 0 && known > 0) return true;
  return children
    .slice(0, children.indexOf(child))
    .some(({ texts }) => texts !== null && isSameTexts(texts, child.texts!));
}

/** A short name for texts that were tried. */
export function mark(texts: Texts): string {
  const text = textToDigest(texts);
  return hash32('gepa', text).toString(36) + hash32(text, 'gepa').toString(36);
}

/** Whether everything for a judgement has arrived. */
export function isJudgeable({ stage, outcome, children }: Iteration): boolean {
  return stage === 'after' && outcome === null && children.every(({ after }) => after === null || isComplete(after));
}

/**
 * Decides which children are validated, in the order of iterations: each judgement sees everything committed before it,
 * and nothing else.
 */
export function judge(
  iteration: Iteration,
  around: Around & { readonly candidates: readonly Candidate[]; readonly screened: readonly number[] },
): void {
  const { number, children, kind, parents } = iteration;
  const { settings, candidates, emit } = around;
  const open = children.filter(({ after }) => after !== null);
  for (const { after } of open) emit({ kind: 'evaluation_end', iteration: number, sum: total(scoresOf(after!)) });
  turnDown(iteration, open, settings);
  dropRepeated(open, settings.skipsTried ? candidates : []);
  iteration.paidBeforeValidation = iteration.paid;
  for (const [i, child] of children.entries()) {
    if (child.outcome !== null) continue;
    child.outcome = 'accepted';
    child.turn = turnOfChild(parents.map((parent) => candidates[parent]!));
    child.minibatch = settings.reusesMinibatch && kind === 'reflect' ? tracesOf(child.after!) : null;
    child.validation = newEvaluation(`${number}.validation.${i}`, 'val', around.screened);
  }
  if (acceptedChildren(iteration).length > 0) iteration.stage = 'validate';
  else finish(iteration, 'finished');
}

function turnDown({ before, mergeFloor }: Iteration, open: readonly Child[], settings: SearchSettings): void {
  const { acceptance, proposalSelection } = settings;
  if (mergeFloor !== null) {
    for (const child of open) if (total(scoresOf(child.after!)) < mergeFloor) child.outcome = 'rejected';
    return;
  }
  const proposals = open.map(({ after }) => ({ before: scoresOf(before!), after: scoresOf(after!) }));
  const selected = selectProposals(proposalSelection, acceptance, proposals);
  for (const [i, child] of open.entries())
    if (!selected.includes(i)) child.outcome = isAccepted(acceptance, proposals[i]!) ? 'not_selected' : 'rejected';
}

function dropRepeated(open: readonly Child[], candidates: readonly Candidate[]): void {
  const kept: { readonly texts: Texts | null }[] = [...candidates];
  for (const child of open) {
    if (child.outcome !== null) continue;
    if (kept.some(({ texts }) => isSameTexts(texts!, child.texts!))) child.outcome = 'tried';
    else kept.push(child);
  }
}

/** Its evaluations so far. */
export function evaluationsOf({ before, children }: Iteration): Evaluation[] {
  return [before, ...children.flatMap(({ after, validation }) => [after, validation])].filter((e) => e !== null);
}

function validations({ children }: Iteration): Evaluation[] {
  return children.flatMap(({ validation }) => validation ?? []);
}

/** Requests that the iteration waits for. */
export function openRequests(iteration: Iteration, settings: SearchSettings): SearchRequest[] {
  const { number, kind, stage, before, children, texts: parent } = iteration;
  const { seed, seedsReflection } = settings;
  const evaluate = (purpose: EvaluateRequest['purpose'], texts: Texts | null, evaluation: Evaluation | null) =>
    evaluation === null || !evaluation.isOpen
      ? []
      : [evaluateRequest(evaluation, { iteration: number, purpose, texts: texts!, seed })];
  switch (stage) {
    case 'before':
      return evaluate('parent', parent, before);
    case 'reflect': {
      const records = tracesOf(before!);
      return children
        .flatMap(({ reflections }) => reflections)
        .filter(({ isAnswered }) => !isAnswered)
        .map((reflection) => {
          const drawn = seedsReflection ? Math.floor(uniform(seed, 'gepa', reflection.id) * 2 ** 31) : null;
          return reflectRequest(reflection, { iteration: number, texts: parent, records, seed: drawn });
        });
    }
    case 'after':
      return children.flatMap(({ texts, after }) => evaluate(kind === 'merge' ? 'merge' : 'child', texts, after));
    case 'validate':
      return children.flatMap(({ texts, validation }) => evaluate('validation', texts, validation));
    case 'done':
      return [];
    default:
      return stage satisfies never;
  }
}
