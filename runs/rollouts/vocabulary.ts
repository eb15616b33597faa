import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { layout } from '../layout.ts';
import { firstLineage } from '../../core/names.ts';
import type { PolicyVersion, RunHandle } from '../../core/rl/run-state.ts';
import { decodeJson } from '../../store/objects.ts';
import { storeOf } from '../run-access.ts';

/** Vocabulary size of a version's model, from its config.json, or that of its adapter's base. */
export async function vocabularySizeOf(run: RunHandle, { weights }: PolicyVersion): Promise<number> {
  const store = storeOf(run);
  for (const folder of [weights, layout.weights(run.lineage, 0), layout.weights(firstLineage, 0)]) {
    const key = path.posix.join(folder, 'config.json');
    const bytes = await store.read(key);
    const size = bytes && decodeJson<Readonly<Record<string, unknown>>>(bytes, key)['vocab_size'];
    if (Number.isSafeInteger(size) && Number(size) > 0) return Number(size);
  }
  throw new RatchetError(
    'Unsupported',
    `The gibberish filter needs the size of the vocabulary, which ${store.uri}${weights}config.json does not say. Restore the file, or take the filter out.`,
  );
}
