import { evaluationChunksMax } from '../../core/limits.ts';
import type { RecordRow } from '../../core/rl/rollout/results.ts';
import { jsonOrNull } from '../../core/json-or-null.ts';
import { decodeRows, isRecord } from '../../store/objects.ts';
import { layout, lineageOf, recordsName, roundOf, stepOf } from '../layout.ts';
import { type LineagePlace, type RunPlace, storeOf, stretchesOf } from '../run-access.ts';

/**
 * Keys of a run's scored objects that were sampled for these steps, by step, from the lineages that led to its position.
 */
export async function scoredKeysOf(
  run: LineagePlace,
  { first, last }: { readonly first: number; readonly last: number },
): Promise<string[]> {
  const found: string[] = [];
  for (const { lineage, from, upTo } of await stretchesOf(run)) {
    const keys = layout.scoredIn(await storeOf(run).list(layout.allRounds(lineage)));
    const isOfStretch = (step: number): boolean => step > from && step <= upTo && step >= first && step <= last;
    found.push(...keys.filter((key) => lineageOf(key) === lineage && isOfStretch(stepOf(key) ?? -1)));
  }
  const place = (key: string): [number, number] => [stepOf(key)!, roundOf(key)?.first ?? 0];
  return found.toSorted((a, b) => {
    const [[stepA, firstA], [stepB, firstB]] = [place(a), place(b)];
    return stepA - stepB || firstA - firstB || (a < b ? -1 : 1);
  });
}

/** Groups of a chunk, at least: an activity takes longer than what is around it. */
const groupsOfChunk = 250;

/**
 * Divides objects among activities: few enough for one history, each a stretch of neighbours. How many groups an object
 * has is estimated, from those of its round.
 */
export function chunksOfKeys(keys: readonly string[]): string[][] {
  const objects = new Map<string, number>();
  for (const key of keys) objects.set(folderOf(key), (objects.get(folderOf(key)) ?? 0) + 1);
  const groupsOf = (key: string): number => {
    const round = roundOf(key);
    return round === null ? 1 : (round.last - round.first + 1) / objects.get(folderOf(key))!;
  };
  const all = keys.reduce((sum, key) => sum + groupsOf(key), 0);
  const target = Math.max(groupsOfChunk, all / (evaluationChunksMax - 1));
  const chunks: string[][] = [];
  let groups = Infinity;
  for (const key of keys) {
    if (groups >= target) {
      chunks.push([]);
      groups = 0;
    }
    chunks.at(-1)!.push(key);
    groups += groupsOf(key);
  }
  return chunks;
}

function folderOf(key: string): string {
  return key.slice(0, key.lastIndexOf('/') + 1);
}

/** What is stored beside a scored object for readers: rows of the environment's own, by rollout, and its tools. */
export interface BesideScored {
  readonly records: readonly RecordRow[];
  readonly tools: unknown;
}

/** Of one environment's groups in a scored object. */
export async function besideScored(run: RunPlace, key: string, environment: string): Promise<BesideScored> {
  const round = roundOf(key);
  const chunk = round?.chunk;
  if (round === null || chunk === undefined) return { records: [], tools: undefined };
  const prefix = layout.resultsOfChunk(round.lineage, round, { environment, run: run.name, chunk });
  const store = storeOf(run);
  const [recorded, metadata] = await Promise.all([
    store.read(prefix + recordsName),
    store.read(`${prefix}metadata.json`),
  ]);
  const about = metadata && jsonOrNull(Buffer.from(metadata).toString('utf8'));
  return {
    records: recorded ? decodeRows<RecordRow>(recorded, store.uri + prefix + recordsName) : [],
    tools: isRecord(about) ? about['tools'] : undefined,
  };
}
