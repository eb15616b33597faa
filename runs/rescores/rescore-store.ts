import { createHash } from 'node:crypto';
import type { EvaluationPlace } from '../../core/eval/evaluation.ts';
import type { RescoredGroup, RescoreHandle, RescoreInput, StoredRescore } from '../../core/eval/rescore.ts';
import type { ObjectRef } from '../../core/rl/run-state.ts';
import { canonical } from '../../core/eval/same-evaluation.ts';
import type { Store } from '../../store/index.ts';
import { sha256 } from '../../store/file-store.ts';
import { encodeRows, zipped } from '../../store/objects.ts';
import { decodeStoredRows, encodeStoredRows } from '../forms/stored-forms.ts';
import { readJson } from '../run-access.ts';

/** Rows of one object: few enough that each fits into memory many times. */
export const rowsOfPart = 2_000;

/** Keys of a rescore's parts, below its prefix in the folder of the run or evaluation. Nothing beside it is written. */
export const rescoreKeys = {
  /** Folder of all rescores below a run's or an evaluation's prefix. */
  all: (prefix = '') => `${prefix}rescores/`,
  place: (prefix: string, id: string) => `${rescoreKeys.all(prefix)}${id}/`,
  rescore: ({ prefix }: EvaluationPlace) => `${prefix}rescore.json`,
  summary: ({ prefix }: EvaluationPlace) => `${prefix}summary.json`,
  /** Written last: with it a chunk is finished. */
  chunk: ({ prefix }: EvaluationPlace, chunk: number) => `${prefix}chunks/chunk_${chunk}.json`,
  /** Groups of a chunk as they are scored, in objects by number. */
  journal: ({ prefix }: EvaluationPlace, chunk: number) => `${prefix}chunks/chunk_${chunk}/scored_`,
  scores: ({ prefix }: EvaluationPlace, chunk: number, digest: string) =>
    `${prefix}chunks/chunk_${chunk}/scores.${digest.slice(0, 16)}.jsonl.gz`,
  rows: ({ prefix }: EvaluationPlace, chunk: number, digest: string) =>
    `${prefix}chunks/chunk_${chunk}/rows.${digest.slice(0, 16)}.jsonl.gz`,
  /** One environment's results in verifiers' format, a folder as of an evaluation. */
  results: ({ prefix }: EvaluationPlace, environment: string, model: string) =>
    `${prefix}evals/${environment}--${model.replaceAll('/', '--')}/${prefix.split('/').at(-2)!}/`,
} as const;

/**
 * Id of a rescore by what it is asked: the same command names the same one. What it may cost does not belong to it.
 * `fresh` tells repetitions apart.
 */
export function rescoreId(
  { subject, environments, rubric, failedOnly }: Omit<RescoreInput, 'results' | 'limit'>,
  fresh = 0,
): string {
  const asked = canonical([subject, environments, rubric, failedOnly, ...(fresh === 0 ? [] : [fresh])]);
  return createHash('sha256').update(asked).digest('hex').slice(0, 8);
}

export function storedRescore({ place, spec }: Pick<RescoreHandle, 'place' | 'spec'>): Promise<StoredRescore> {
  return readJson<StoredRescore>(place, spec);
}

/** Stores groups under a name that their content gives them. Idempotent. */
export async function putScores(
  store: Store,
  place: EvaluationPlace,
  chunk: number,
  groups: readonly RescoredGroup[],
): Promise<ObjectRef> {
  const example = rescoreKeys.scores(place, chunk, '0'.repeat(16));
  const bytes = encodeStoredRows(example, groups);
  const ref = await store.put(rescoreKeys.scores(place, chunk, sha256(bytes)), await zipped(bytes));
  return { ...ref, count: groups.length };
}

/** The same of rows for people. */
export async function putResultRows(
  store: Store,
  place: EvaluationPlace,
  chunk: number,
  rows: readonly object[],
): Promise<ObjectRef> {
  const bytes = encodeRows(rows);
  const ref = await store.put(rescoreKeys.rows(place, chunk, sha256(bytes)), await zipped(bytes));
  return { ...ref, count: rows.length };
}

export async function readScores(store: Store, ref: ObjectRef): Promise<readonly RescoredGroup[]> {
  return decodeStoredRows<RescoredGroup>(await store.get(ref), ref.key);
}
