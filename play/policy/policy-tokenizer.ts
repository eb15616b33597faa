import type { RunSpec } from '../../config/run-spec.ts';
import type { RunHandle } from '../../core/rl/run-state.ts';
import type { ChatTokenizer, Rendering } from '../../engine/index.ts';
import { storedTemplate } from '../../runs/forms/stored-template.ts';
import type { RunPlace } from '../../runs/run-access.ts';

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
