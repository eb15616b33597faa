import { createHash } from 'node:crypto';
import { rowsAtOnceTokensMax } from '../../core/limits.ts';
import {
  type PackedRow,
  type RowSource,
  scoredRows,
  type TokenScores,
  windowsOf,
} from '../../core/rl/learning/batch.ts';
import { decodeScores, encodeScores, type ScoredRow } from './batch-parts.ts';
import { layout } from '../layout.ts';
import { type LineagePlace, storeOf } from '../run-access.ts';

/**
 * Stores the trainer's values for each token of a completed step, up to `tokenScoresMax` tokens, in parts. Repeating
 * the step after a kill writes the same. No step's result depends on them.
 */
export async function putTokenScores(
  run: LineagePlace,
  step: number,
  batch: RowSource<PackedRow>,
  { logprobs, entropies }: TokenScores,
): Promise<void> {
  const kept = batch.rows.slice(0, scoredRows(batch.rows));
  for (const places of windowsOf(kept, rowsAtOnceTokensMax)) {
    const rows = (await batch.read(places)).flatMap(({ tokenIds, lossMask }, i): ScoredRow[] => {
      const counted = [...lossMask.keys()].filter((t) => lossMask[t] !== 0);
      const of = (values: Float32Array): Float32Array => Float32Array.from(counted, (t) => values[t]!);
      const place = places[i]!;
      const told = of(logprobs[place]!);
      if (told.every((value) => value === 0)) return [];
      return [{ row: nameOf(tokenIds), logprobs: told, entropies: entropies && of(entropies[place]!) }];
    });
    if (rows.length > 0) await storeOf(run).put(layout.tokenScores(run.lineage, step, places[0]!), encodeScores(rows));
  }
}

/** The trainer's values for the rows of a step, by their tokens; empty for rows that are not kept. */
export async function readTokenScores(
  run: LineagePlace,
  step: number,
): Promise<(tokenIds: readonly number[]) => ScoredRow | null> {
  const store = storeOf(run);
  const found = new Map<string, ScoredRow>();
  for (const key of await store.list(layout.tokenScoresOf(run.lineage, step))) {
    const bytes = await store.read(key);
    if (bytes) for (const scored of decodeScores(bytes, store.uri + key)) found.set(scored.row, scored);
  }
  return (tokenIds) => found.get(nameOf(tokenIds)) ?? null;
}

function nameOf(tokenIds: readonly number[]): string {
  return createHash('sha256').update(Int32Array.from(tokenIds)).digest('hex').slice(0, 16);
}
