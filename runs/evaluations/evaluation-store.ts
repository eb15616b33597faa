import type { EvaluationHandle, EvaluationPlace, StoredEvaluation } from '../../core/eval/evaluation.ts';
import { positionsOf } from '../../core/eval/chunks.ts';
import type { RolloutRow } from '../../core/rl/rollout/rollout.ts';
import type { Store } from '../../store/index.ts';
import { sha256 } from '../../store/file-store.ts';
import type { ObjectRef } from '../../core/rl/run-state.ts';
import { decodeStored, decodeStoredRows } from '../forms/stored-forms.ts';
import { readJson, storeOf } from '../run-access.ts';

/** Keys of an evaluation's parts, below its prefix. */
export const evaluationKeys = {
  /** In verifiers' format, for people and viewers; generated from the parts below. */
  results: ({ prefix }: EvaluationPlace) => `${prefix}results.jsonl`,
  metadata: ({ prefix }: EvaluationPlace) => `${prefix}metadata.json`,
  /** The evaluation's input, once for each time it was opened. */
  attempts: ({ prefix }: EvaluationPlace) => `${prefix}evaluation/attempt_`,
  attempt: (place: EvaluationPlace, attempt: number) => `${evaluationKeys.attempts(place)}${attempt}.json`,
  summary: ({ prefix }: EvaluationPlace, attempt: number) => `${prefix}evaluation/summary_${attempt}.json`,
  /** Finished rollouts of a chunk, of all attempts. */
  chunk: ({ prefix }: EvaluationPlace, chunk: number) => `${prefix}rollouts/chunk_${chunk}/`,
  /** Parts of a chunk from one attempt only: failed rollouts, and scored groups. */
  ofAttempt: (place: EvaluationPlace, chunk: number, attempt: number) =>
    `${evaluationKeys.chunk(place, chunk)}attempt_${attempt}/`,
} as const;

export async function storedEvaluation({ place, spec }: EvaluationHandle): Promise<StoredEvaluation> {
  return readJson<StoredEvaluation>(place, spec);
}

/** The newest opening of an evaluation; null where none was begun there. */
export async function newestAttempt(
  place: EvaluationPlace,
): Promise<{ readonly evaluation: StoredEvaluation; readonly ref: ObjectRef } | null> {
  const store = storeOf(place);
  const prefix = evaluationKeys.attempts(place);
  const numbers = (await store.list(prefix)).map((key) => Number.parseInt(key.slice(prefix.length), 10));
  if (numbers.length === 0) return null;
  const key = evaluationKeys.attempt(place, Math.max(...numbers));
  const bytes = await store.read(key);
  if (bytes === null) return null;
  const ref = { key, sha256: sha256(bytes), bytes: bytes.byteLength };
  return { evaluation: decodeStored<StoredEvaluation>(bytes, key), ref };
}

/** Rows of one example's rollouts, by index: scored together, or each on its own. */
export interface ScoredExample {
  /** The example's position in the evaluation. */
  readonly group: number;
  readonly rows: readonly RolloutRow[];
}

export function isWhole({ rows }: ScoredExample, rolloutsPerExample: number): boolean {
  return rows.length === rolloutsPerExample && rows.every(({ reward }) => typeof reward === 'number');
}

/**
 * Examples of a chunk that this attempt need not touch, by position: those whose rollouts all have a reward from any
 * attempt, and those that this attempt has finished.
 */
export async function scoredExamples(
  store: Store,
  {
    place,
    attempt,
    rolloutsPerExample,
    ...cut
  }: Pick<EvaluationHandle, 'place' | 'attempt' | 'rolloutsPerExample' | 'chunkExamples' | 'examples'>,
  chunk: number,
): Promise<Map<number, ScoredExample>> {
  const prefix = evaluationKeys.chunk(place, chunk);
  const own = evaluationKeys.ofAttempt(place, chunk, attempt);
  const { from, to } = positionsOf(chunk, cut);
  const scored = new Map<number, ScoredExample>();
  const keys = (await store.list(prefix)).filter((key) => /\/attempt_\d+\/rows_\d+\.jsonl$/.test(key));
  for (const key of keys) {
    const rows = decodeStoredRows<ScoredExample>((await store.read(key)) ?? Buffer.of(), key);
    for (const example of rows) {
      const counts = key.startsWith(own) || isWhole(example, rolloutsPerExample);
      const isThere = example.group >= from && example.group < to;
      if (counts && isThere && !isKnownWhole(scored.get(example.group), rolloutsPerExample)) {
        scored.set(example.group, example);
      }
    }
  }
  return scored;
}

function isKnownWhole(known: ScoredExample | undefined, rolloutsPerExample: number): boolean {
  return known !== undefined && isWhole(known, rolloutsPerExample);
}
