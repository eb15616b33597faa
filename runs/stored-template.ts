import { RatchetError } from '../core/errors.ts';
import { layout } from './layout.ts';
import type { RunHandle } from '../core/rl/run-state.ts';
import type { RunSpec } from '../config/run-spec.ts';
import type { ChatTokenizer, Rendering } from '../engine/index.ts';
import { sha256 } from '../backends/store/file-store.ts';
import { type RunPlace, storeOf } from './run-access.ts';

/** Opens the tokenizer of a folder of weights. */
export type OpenTokenizer = (folder: string, rendering?: Rendering) => Promise<ChatTokenizer>;

/**
 * The tokenizer of one of a run's versions: with the run's own chat template, whatever whoever trained it wrote beside it, which is
 * told the time at which the run was begun, on whatever day and machine a prompt is rendered.
 */
export async function policyTokenizer(
  run: RunPlace & Pick<RunHandle, 'begunAt'>,
  spec: RunSpec,
  { folder, open }: { readonly folder: string; readonly open: OpenTokenizer },
): Promise<ChatTokenizer> {
  const template = await storedTemplate(run, spec);
  return open(folder, { time: run.begunAt ?? null, ...(template === null ? {} : { chatTemplate: template }) });
}

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
