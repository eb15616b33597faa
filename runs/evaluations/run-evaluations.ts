import { randomUUID } from 'node:crypto';
import { rmSync } from 'node:fs';
import { mkdir, mkdtemp, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { jsonOrNull } from '../../core/json-or-null.ts';
import { RatchetError } from '../../core/errors.ts';
import { readMetadata } from '../../core/eval/result-metadata.ts';
import { layout, olderScoredNames, recordsName, chunkOfResults, stepOf } from '../layout.ts';
import { decodeStoredRows } from '../forms/stored-forms.ts';
import { type RecordRow, rowsOfRound } from '../../core/rl/rollout/results.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import type { Store } from '../../store/index.ts';
import { decodeRows, encodeRows, isRecord, rowLike } from '../../store/objects.ts';
import { type FoundEvaluations, type FoundEvaluation, namesFromFolder } from './evaluation.ts';

export interface RunEvaluation extends FoundEvaluation {
  readonly lineage: string;
  readonly step: number;
}

/** metadata.json files that are read at once. */
const readsAtOnce = 16;

/** Evaluations of a run and, on request, its training rounds, in any store; by step. */
export async function runEvaluations(
  store: Store,
  lineages: readonly string[],
  { training = false }: { readonly training?: boolean } = {},
): Promise<FoundEvaluations<RunEvaluation>> {
  const places = lineages.flatMap((lineage) => [
    { lineage, of: 'evaluation' as const, prefix: layout.allEvaluations(lineage) },
    ...(training ? [{ lineage, of: 'training' as const, prefix: layout.allResults(lineage) }] : []),
  ]);
  const wanted: { lineage: string; of: FoundEvaluation['of']; folder: string }[] = [];
  const incomplete: FoundEvaluations['incomplete'][number][] = [];
  for (const { lineage, of, prefix } of places) {
    const keys = new Set(await store.list(prefix));
    const last = of === 'evaluation' ? 'results.jsonl' : 'metadata.json';
    for (const key of keys) {
      if (!key.endsWith(`/${last}`)) continue;
      const folder = key.slice(0, -last.length);
      if (keys.has(`${folder}metadata.json`)) wanted.push({ lineage, of, folder });
      else incomplete.push({ where: store.uri + folder, why: 'results.jsonl without metadata.json: not ended yet' });
    }
  }
  const found: RunEvaluation[] = [];
  for (let at = 0; at < wanted.length; at += readsAtOnce) {
    const piece = wanted.slice(at, at + readsAtOnce);
    const opened = await Promise.all(piece.map((one) => openStored(store, one)));
    for (const [i, one] of opened.entries()) {
      if (one) found.push(one);
      else incomplete.push({ where: store.uri + piece[i]!.folder, why: 'metadata.json is not a JSON object' });
    }
  }
  return { evaluations: found.sort((a, b) => a.step - b.step), incomplete };
}

async function openStored(
  store: Store,
  { lineage, of, folder }: { readonly lineage: string; readonly of: FoundEvaluation['of']; readonly folder: string },
): Promise<RunEvaluation | null> {
  const bytes = await store.read(`${folder}metadata.json`);
  const metadata = bytes && readMetadata(jsonOrNull(Buffer.from(bytes).toString('utf8')));
  if (!metadata) return null;
  const parts = folder.split('/');
  const named = namesFromFolder(parts.at(-3)!);
  return {
    lineage,
    of,
    environment: named.environment,
    model: named.model,
    id: parts.at(-2)!,
    where: store.uri + folder,
    metadata,
    step: stepOf(folder.slice(folder.indexOf('evals/'))) ?? metadata.step ?? 0,
    rows:
      of === 'evaluation'
        ? async () => path.join(await store.localFolder(folder), 'results.jsonl')
        : () => rowsOfTraining(store, folder, named.environment),
  };
}

/** Rows of a training chunk, made from its stored objects, in a file that lasts as long as this process. */
async function rowsOfTraining(store: Store, folder: string, environment: string): Promise<string> {
  const round = chunkOfResults(folder);
  const found = round && (await scoredOf(store, round));
  if (!round || !found)
    throw new RatchetError('RunNotFound', `${store.uri}${folder}: its rollouts are not in the store any more.`);
  const groups = decodeStoredRows<ScoredGroup>(found.bytes, store.uri + found.key).filter(
    (group) => group.environment === environment,
  );
  const [recorded, metadata] = await Promise.all([
    store.read(folder + recordsName),
    store.read(`${folder}metadata.json`),
  ]);
  const records = recorded ? decodeRows<RecordRow>(recorded, store.uri + folder + recordsName) : [];
  const about = metadata && jsonOrNull(Buffer.from(metadata).toString('utf8'));
  const tools = isRecord(about) ? about['tools'] : undefined;
  const file = path.join(await temporaryFolder(), randomUUID(), 'results.jsonl');
  await mkdir(path.dirname(file));
  await writeFile(file, encodeRows(rowsOfRound(groups, { step: round.step, records, tools, like: rowLike })));
  return file;
}

async function scoredOf(
  store: Store,
  round: NonNullable<ReturnType<typeof chunkOfResults>>,
): Promise<{ readonly key: string; readonly bytes: Uint8Array } | null> {
  const { lineage, step, first, last, chunk } = round;
  const folder = layout.round(lineage, step, first, last);
  const keys =
    chunk === undefined ? olderScoredNames.map((name) => folder + name) : [layout.scored(lineage, round, chunk)];
  for (const key of keys) {
    const bytes = await store.read(key);
    if (bytes) return { key, bytes };
  }
  return null;
}

let temporary: Promise<string> | null = null;

/** Folder of this process, removed when it exits. */
function temporaryFolder(): Promise<string> {
  temporary ??= mkdtemp(path.join(os.tmpdir(), 'ratchet-rows-')).then((folder) => {
    process.once('exit', () => rmSync(folder, { recursive: true, force: true }));
    return folder;
  });
  return temporary;
}
