import { RatchetError } from '../../core/errors.ts';
import { layout } from '../layout.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { sha256 } from '../../store/file-store.ts';
import { type RunPlace, storeOf } from '../run-access.ts';

/** The text of `[tokenizer] chat_template` as it was when the run began; null where the model's own holds. */
export async function storedTemplate(run: RunPlace, { chatTemplate }: RunSpec): Promise<string | null> {
  if (chatTemplate === null) return null;
  const bytes = await storeOf(run).read(layout.chatTemplate());
  if (bytes && sha256(bytes) === chatTemplate.sha256) return Buffer.from(bytes).toString('utf8');
  throw new RatchetError(
    'CheckpointDamaged',
    `${storeOf(run).uri}${layout.chatTemplate()}: expected the chat template this run began with (sha256 ${chatTemplate.sha256?.slice(0, 12)}…), found ${bytes ? 'another one' : 'nothing'}. Restore the file from a copy.`,
  );
}
