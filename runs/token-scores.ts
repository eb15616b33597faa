import { createHash } from 'node:crypto';
import { rowsAtOnceTokensMax, tokenScoresMax } from '../core/limits.ts';
import { type PackedRow, type RowSource, type TokenScores, windowsOf } from '../core/rl/batch.ts';
import { decodeScores, encodeScores, type ScoredRow } from './batch-parts.ts';
import { layout } from './layout.ts';
import { type LineagePlace, storeOf } from './run-access.ts';

/**
 * Stores what a trainer computed of each token of a step that was taken, up to `tokenScoresMax` tokens, in parts. Whoever takes the step again,
 * after a kill, writes the same again. The bits of no step depend on it.
 */
export async function putTokenScores(
  run: LineagePlace,
  step: number,
  batch: RowSource<PackedRow>,
  { logprobs, entropies }: TokenScores,
): Promise<void> {
  let left = tokenScoresMax;
  for (const places of windowsOf(batch.rows, rowsAtOnceTokensMax)) {
    const kept: ScoredRow[] = [];
    for (const [i, { tokenIds, lossMask }] of (await batch.read(places)).entries()) {
      const counted = [...lossMask.keys()].filter((t) => lossMask[t] !== 0);
      const of = (values: Float32Array): Float32Array => Float32Array.from(counted, (t) => values[t]!);
      const place = places[i]!;
      const told = of(logprobs[place]!);
      if ((left -= counted.length) < 0 || told.every((value) => value === 0)) continue;
      kept.push({ row: nameOf(tokenIds), logprobs: told, entropies: entropies && of(entropies[place]!) });
    }
    if (kept.length > 0) await storeOf(run).put(layout.tokenScores(run.lineage, step, places[0]!), encodeScores(kept));
    if (left <= 0) return;
  }
}

/** What the trainer computed of the rows of a step, by their tokens; nothing of those that are not kept. */
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
