import path from 'node:path';
import { z } from 'zod';
import { RatchetError } from '../core/errors.ts';
import { layout } from '../core/layout.ts';
import { firstLineage } from '../core/names.ts';
import type { PolicyVersion, RunHandle } from '../core/rl/run-state.ts';
import { decodeJson } from '../backends/store/objects.ts';
import { storeOf } from './run-access.ts';

const Config = z.looseObject({ vocab_size: z.int().positive() });

/** How many tokens a version's model has, as its config.json says, or that of the base its adapters are for. */
export async function vocabularySizeOf(run: RunHandle, { weights }: PolicyVersion): Promise<number> {
  const store = storeOf(run);
  for (const folder of [weights, layout.weights(run.lineage, 0), layout.weights(firstLineage, 0)]) {
    const key = path.posix.join(folder, 'config.json');
    const bytes = await store.read(key);
    const config = Config.safeParse(bytes && decodeJson(bytes, key));
    if (config.success) return config.data.vocab_size;
  }
  throw new RatchetError(
    'Unsupported',
    `The gibberish filter needs the size of the vocabulary, which ${store.uri}${weights}config.json does not say. Restore the file, or take the filter out.`,
  );
}
