import path from 'node:path';
import { layout, stepOf } from '../../core/layout.ts';
import { readMetadata } from '../../core/eval/result-metadata.ts';
import type { Store } from '../store/index.ts';
import { type Found, type FoundEvaluation, namesIn } from './evaluation.ts';

export interface RunEvaluation extends FoundEvaluation {
  readonly lineage: string;
  readonly step: number;
}

/** metadata.json files that are read at once. */
const readsAtOnce = 16;

/** The evaluations of a run and, where asked for, what was sampled to train it, wherever its store is; by step. */
export async function runEvaluations(
  store: Store,
  lineages: readonly string[],
  { training = false }: { readonly training?: boolean } = {},
): Promise<Found<RunEvaluation>> {
  const places = lineages.flatMap((lineage) => [
    { lineage, of: 'evaluation' as const, prefix: layout.allEvaluations(lineage) },
    ...(training ? [{ lineage, of: 'training' as const, prefix: layout.allResults(lineage) }] : []),
  ]);
  const wanted: { lineage: string; of: FoundEvaluation['of']; folder: string }[] = [];
  const incomplete: Found['incomplete'][number][] = [];
  for (const { lineage, of, prefix } of places) {
    const keys = new Set(await store.list(prefix));
    for (const key of keys) {
      // What a batch was made of is among the rounds of its step already.
      if (!key.endsWith('/results.jsonl') || /\/step_\d+\.trained\.[^/]+\/results\.jsonl$/.test(key)) continue;
      const folder = key.slice(0, -'results.jsonl'.length);
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
  const metadata = bytes && readMetadata(parsed(bytes));
  if (!metadata) return null;
  const parts = folder.split('/');
  const named = namesIn(parts.at(-3)!);
  return {
    lineage,
    of,
    environment: named.environment,
    model: named.model,
    id: parts.at(-2)!,
    where: store.uri + folder,
    metadata,
    step: stepOf(folder.slice(folder.indexOf('evals/'))) ?? metadata.step ?? 0,
    rows: async () => path.join(await store.localFolder(folder), 'results.jsonl'),
  };
}

function parsed(bytes: Uint8Array): unknown {
  try {
    return JSON.parse(Buffer.from(bytes).toString('utf8')) as unknown;
  } catch {
    return null; // said by the caller
  }
}
