import { hash32 } from '../random.ts';
import type {
  EvaluateRequest,
  Evaluation,
  ExampleSet,
  Reflection,
  ReflectRequest,
  SearchAnswer,
  TraceRef,
} from './search-state.ts';

type ScoresAnswer = Extract<SearchAnswer, { kind: 'scores' }>;

export function newEvaluation(id: string, set: ExampleSet, examples: readonly number[]): Evaluation {
  const empty = examples.map(() => null);
  return {
    id,
    set,
    examples,
    scores: [...empty],
    objectives: [...empty],
    sources: [...empty],
    attempt: 1,
    isOpen: true,
  };
}

/** An evaluation whose scores are already known. */
export function knownEvaluation(id: string, known: readonly TraceRef[]): Evaluation {
  return {
    id,
    set: 'train',
    examples: known.map(({ example }) => example),
    scores: known.map(({ score }) => score),
    objectives: known.map(() => null),
    sources: known.map(({ request, index }) => [request, index] as const),
    attempt: 1,
    isOpen: false,
  };
}

export function missing({ scores }: Evaluation): number {
  return scores.filter((score) => score === null).length;
}

export function isComplete(evaluation: Evaluation): boolean {
  return missing(evaluation) === 0;
}

/** Requires a complete evaluation. */
export function scoresOf({ scores }: Evaluation): number[] {
  return scores.map((score) => score!);
}

export function tracesOf({ examples, scores, sources }: Evaluation): TraceRef[] {
  return examples.map((example, i) => {
    const [request, index] = sources[i]!;
    return { request, index, example, score: scores[i]! };
  });
}

export function evaluateRequest(
  evaluation: Evaluation,
  asked: Pick<EvaluateRequest, 'iteration' | 'purpose' | 'texts'> & { readonly seed: number },
): EvaluateRequest {
  const { set, examples, scores } = evaluation;
  const id = attemptId(evaluation);
  return {
    kind: 'evaluate',
    id,
    iteration: asked.iteration,
    purpose: asked.purpose,
    texts: asked.texts,
    set,
    examples: examples.filter((_, i) => scores[i] === null),
    keepsTraces: set === 'train',
    seed: hash32(asked.seed, 'gepa', id),
  };
}

export function reflectRequest(
  reflection: Reflection,
  asked: Pick<ReflectRequest, 'iteration' | 'texts' | 'records' | 'seed'>,
): ReflectRequest {
  const { iteration, texts, records, seed } = asked;
  return {
    kind: 'reflect',
    id: attemptId(reflection),
    iteration,
    component: reflection.component,
    texts,
    records,
    seed,
  };
}

/** The first attempt has the id itself, the second `id~2`. */
export function attemptId({ id, attempt }: { readonly id: string; readonly attempt: number }): string {
  return attempt === 1 ? id : `${id}~${attempt}`;
}

/** Assigns an answer's scores to the examples of its request, in order. */
export function takeScores(evaluation: Evaluation, answer: ScoresAnswer): void {
  const request = attemptId(evaluation);
  const open = evaluation.scores.flatMap((score, i) => (score === null ? [i] : []));
  requireFitting(answer, open.length);
  for (const [index, position] of open.entries()) {
    const score = answer.scores[index]!;
    if (score === null) continue;
    evaluation.scores[position] = score;
    evaluation.objectives[position] = answer.objectives?.[index] ?? null;
    evaluation.sources[position] = [request, index];
  }
}

function requireFitting({ id, scores, paid, objectives }: ScoresAnswer, asked: number): void {
  if (scores.length !== asked || (objectives !== undefined && objectives.length !== asked))
    throw new Error(`Request ${id} asked for ${asked} examples and was answered with ${scores.length} scores.`);
  requirePaid(id, paid, asked);
  const strange = scores.find((score) => score !== null && !Number.isFinite(score));
  if (strange !== undefined) throw new Error(`Request ${id} was answered with the score ${strange}.`);
}

/** Throws if a request cost more than was reserved for it. */
export function requirePaid(id: string, paid: number, asked: number): void {
  if (!Number.isInteger(paid) || paid < 0 || paid > asked)
    throw new Error(`Request ${id} was to make ${asked} metric calls at most and reports to have made ${paid}.`);
}
