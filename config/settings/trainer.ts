import { z } from 'zod';
import { baseUrl, keyVariable, variableName } from '../model-access.ts';
import { hostedTinkerKey, hostedTinkerUrl, TinkerTrainerSpec } from '../tinker-spec.ts';
import { choice, text, whole } from '../values.ts';
import { otherResume } from './checkpoints.ts';
import { codeFile, CodeRef, codeRef } from './code.ts';
import type { RatchetConfig } from './index.ts';
import { laterIn } from './later.ts';
import { correction } from './correction.ts';
import { echo } from './echo.ts';
import { advantage, loss, otherClip } from './learning.ts';
import { optimizer, passes, schedule } from './optimizer.ts';
import { inSpec, setting, specFields, table } from './setting.ts';
import { lengthPenalty, overlongPenalty } from './length-penalty.ts';

/** `[trainer]`: who computes the update, and how. */

/** Of a trainer or an inference of the user's own: what its file exports by default, called with `options`. */
export const own = (what: string) => ({
  import: setting(codeFile(), 'of kind "module": the file whose default export makes it'),
  path: setting(codeFile(), 'another name for `import`'),
  options: setting(z.record(z.string(), z.json()), what, { default: {} }),
});
export const gpuNumbers = () => z.array(z.int().min(0)).min(1).meta({ expected: 'a list of GPU numbers: [0, 1]' });

const embedded = {
  threads: setting(whole(1), 'threads per session; 1 = the same bits on a busy machine', {
    default: 1,
    most: [1_024, 'no machine has more cores', 'at most the cores of the machine'],
  }),
  provider: setting(
    choice('cpu', 'cuda'),
    'where it computes; `cuda` needs its libraries and a GPU (`ratchet doctor`)',
    { default: 'cpu' },
  ),
};
const embeddedMemory = {
  ac_freq: setting(
    whole(1),
    'activations of every n-th layer are computed again instead of kept, for less memory and, with 1, a third more time; when missing, of rows alone that need more than 1.5 GiB',
    { isLeftOut: true },
  ),
};
const embeddedGpus = {
  gpu_ids: setting(
    gpuNumbers(),
    'which GPUs it sees; by default all, or the one behind those of a vLLM that is started',
    { isLeftOut: true },
  ),
};

/** Of kind "tinker": the server, which samples as well. */
export const tinker = {
  url: setting(baseUrl(), 'of kind "tinker": where the server is, before `/api/v1`; the hosted service when missing'),
  api_key_var: setting(
    variableName(),
    'the name of the environment variable with its key; `TINKER_API_KEY` for the hosted service, none for SkyRL',
  ),
  server: setting(
    choice('tinker', 'skyrl'),
    'what it is: the hosted service (`tinker`) or SkyRL; by its `url` when missing',
  ),
  base_model: setting(text(), 'what the server calls the model; the only one it has when missing'),
  loss_reduction: setting(
    choice('sum', 'sequence_mean'),
    'what the server makes of the losses of tokens; their sum on the hosted service, the mean per sequence on SkyRL. Whatever it is, the gradient is the one that `aggregation` asks for',
  ),
  /** The hosted service takes an hour to ten years. */
  checkpoint_ttl: setting(whole(1), 'seconds after which the server may delete a checkpoint; never when missing'),
};

export const trainer = table({
  kind: setting(
    choice('onnx', 'tinker', 'module'),
    'the embedded engine, a server of the Tinker API, or a trainer of your own',
    { default: 'onnx' },
  ),
  ...own('what it is called with'),
  ...embedded,
  loss,
  ...otherClip,
  advantage,
  length_penalty: lengthPenalty,
  overlong_penalty: overlongPenalty,
  echo,
  correction,
  ...passes,
  ...optimizer,
  ...schedule,
  ckpt: otherResume,
  ...embeddedMemory,
  ...embeddedGpus,
  ...tinker,
  ...laterIn('trainer'),
});

/** A trainer or an inference of the user's own: what its file exports by default, called with `options`. */
export const ModuleSpec = z.strictObject({
  kind: z.literal('module'),
  import: CodeRef,
  options: z.record(z.string(), z.json()),
});
export type ModuleSpec = z.infer<typeof ModuleSpec>;

export const TrainerSpec = z.discriminatedUnion('kind', [
  z.strictObject({
    kind: z.literal('onnx'),
    ...specFields(embedded),
    ...specFields(embeddedMemory),
    ...specFields(embeddedGpus),
  }),
  TinkerTrainerSpec,
  ModuleSpec,
]);
export type TrainerSpec = z.infer<typeof TrainerSpec>;

export function trainerSpec(config: Pick<RatchetConfig, 'trainer'>): TrainerSpec {
  const { trainer } = config;
  switch (trainer.kind) {
    case 'onnx':
      return {
        kind: 'onnx',
        ...inSpec(embedded, trainer),
        ...inSpec(embeddedMemory, trainer),
        ...inSpec(embeddedGpus, trainer),
      };
    case 'tinker':
      return tinkerTrainerSpec(config);
    case 'module':
      return moduleSpec(trainer);
    default:
      return trainer.kind satisfies never;
  }
}

/** `import` is there where the kind is "module". */
export function moduleSpec({
  import: file,
  path,
  options,
}: Pick<RatchetConfig['trainer'], 'import' | 'path' | 'options'>): ModuleSpec {
  return { kind: 'module', import: codeRef(file ?? path), options };
}

/** What a server without a `url` is: the hosted service; one of one's own is SkyRL unless the file says otherwise. */
export function tinkerServerOf({
  trainer,
}: Pick<RatchetConfig, 'trainer'>): Pick<TinkerTrainerSpec, 'url' | 'apiKeyVar' | 'server'> {
  const { url = hostedTinkerUrl, api_key_var, server = url === hostedTinkerUrl ? 'tinker' : 'skyrl' } = trainer;
  return { url, apiKeyVar: keyVariable(api_key_var, server === 'tinker' ? hostedTinkerKey : null), server };
}

export function tinkerTrainerSpec(config: Pick<RatchetConfig, 'trainer'>): TinkerTrainerSpec {
  const { base_model, loss_reduction, checkpoint_ttl } = config.trainer;
  const at = tinkerServerOf(config);
  return {
    kind: 'tinker',
    ...at,
    baseModel: base_model ?? null,
    reduction: loss_reduction ?? (at.server === 'tinker' ? 'sum' : 'sequence_mean'),
    checkpointTtlS: checkpoint_ttl ?? null,
  };
}
