import { mkdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { firstLineage } from '../../core/names.ts';
import type { ChatTokenizer } from '../../engine/index.ts';
import { layout } from '../../runs/layout.ts';
import { currentLineage, readHead, type RunPlace, storeOf } from '../../runs/run-access.ts';
import { damaged, orIfDamaged } from '../../store/objects.ts';
import { inTemporaryFolder } from '../../host/temporary-folder.ts';

const tokenizerFiles = [
  'tokenizer.json',
  'tokenizer_config.json',
  'chat_template.jinja',
  'additional_chat_templates/tool_use.jinja',
];

/**
 * Tokenizer of a run's policy, without its weights. null before its first version, or when none of its folders is
 * stored any more.
 */
export async function tokenizerOf(run: RunPlace): Promise<ChatTokenizer | null> {
  const store = storeOf(run);
  for (const weights of await foldersToTry(run)) {
    const found = await Promise.all(
      tokenizerFiles.map(async (name) => [name, await store.read(weights + name)] as const),
    );
    if (found[0]![1] === null || found[1]![1] === null) continue;
    // Imported here, so that a run's status does not load the engine.
    const { loadTokenizer } = await import('../../engine/model/tokenizer/load-tokenizer.ts');
    return inTemporaryFolder('tokenizer', async (folder) => {
      for (const [name, bytes] of found) {
        if (bytes === null) continue;
        await mkdir(path.dirname(path.join(folder, name)), { recursive: true });
        await writeFile(path.join(folder, name), bytes);
      }
      return loadTokenizer(folder).catch((cause: unknown) => {
        if (!(cause instanceof RatchetError)) throw cause;
        // Names the file in the run instead of its temporary copy.
        throw damaged(store.uri + weights, cause.message.replaceAll(`${folder}: `, '').replace(/\.$/, ''), cause);
      });
    });
  }
  return null;
}

/**
 * An adapter may use its base's tokenizer. If the newest commit is damaged, the first version's tokenizer
 * serves.
 */
async function foldersToTry(run: RunPlace): Promise<string[]> {
  const first = layout.weights(firstLineage, 0);
  return orIfDamaged(
    async () => {
      const head = await readHead({ ...run, lineage: await currentLineage(run) });
      if (head === null) return [];
      const { policy, lineage } = head.commit;
      return [policy.weights, layout.weights(lineage, 0), first];
    },
    () => [first],
  );
}
