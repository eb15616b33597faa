import { z } from 'zod';
import { whatTheyAre } from '../../core/kinds/kinds-of.ts';
import { trainerKinds, trainers } from '../../core/kinds/trainers.ts';
import { baseUrl, keyVariable, variableName } from '../models/model-access.ts';
import { hostedTinkerKey, hostedTinkerUrl, TinkerTrainerSpec } from '../models/tinker-spec.ts';
import { choice, text, whole } from '../toml/values.ts';
import { otherResume } from './checkpoints.ts';
import { codeFile, CodeRef, codeRef } from './code.ts';
import type { RatchetConfig } from './index.ts';
import { correction } from './correction.ts';
import { echo } from './echo.ts';
import { advantage, loss, otherClip } from './learning.ts';
import { optimizer, passes, schedule } from './optimizer.ts';
import { inSpec, setting, specFields, table } from './setting.ts';
import { lengthPenalty, overlongPenalty } from './length-penalty.ts';

/** `[trainer]`: the trainer and its settings. */

/** The user's own trainer or inference: the default export of a file, called with `options`. */
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

/** Keys of kind "torch". */
export const torch = {
  program: setting(text(), 'of kind "torch": the Python that has its packages', { default: 'python3' }),
  ranks: setting(whole(1), 'of kind "torch": processes that share the weights and the batch, one on each GPU', {
    default: 1,
    most: [64, 'one machine has no more GPUs', 'at most the GPUs of the machine'],
  }),
  dtype: setting(
    choice('float32', 'bfloat16'),
    'of kind "torch": what it computes with, and what exported weights have; weights in training stay in float32',
    { default: 'float32' },
  ),
};

/** The server of kind "tinker", which samples as well. */
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
  /** The hosted service accepts an hour to ten years. */
  checkpoint_ttl: setting(whole(1), 'seconds after which the server may delete a checkpoint; never when missing'),
};

export const trainer = table({
  kind: setting(choice(...trainerKinds), whatTheyAre(trainers), { default: 'onnx' }),
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
  ...torch,
  ...tinker,
  gpus: setting(
    whole(1),
    'how many GPUs another system’s file has for its trainer; the embedded engine trains on one of them',
  ),
});

/** The user's own trainer or inference: the default export of a file, called with `options`. */
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
  z.strictObject({ kind: z.literal('torch'), ...specFields(torch), ...specFields(embeddedMemory) }),
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
    case 'torch':
      return { kind: 'torch', ...inSpec(torch, trainer), ...inSpec(embeddedMemory, trainer) };
    case 'tinker':
      return tinkerTrainerSpec(config);
    case 'module':
      return moduleSpec(trainer);
    default:
      return trainer.kind satisfies never;
  }
}

/** `import` is set if the kind is "module". */
export function moduleSpec({
  import: file,
  path,
  options,
}: Pick<RatchetConfig['trainer'], 'import' | 'path' | 'options'>): ModuleSpec {
  return { kind: 'module', import: codeRef(file ?? path), options };
}

/** Without a `url` the server is the hosted service; a server at another address is SkyRL by default. */
export function tinkerServerOf({
  trainer,
}: Pick<RatchetConfig, 'trainer'>): Pick<TinkerTrainerSpec, 'url' | 'apiKeyVar' | 'server'> {
  const { url = hostedTinkerUrl, api_key_var, server = url === hostedTinkerUrl ? 'tinker' : 'skyrl' } = trainer;
  return { url, apiKeyVar: keyVariable(api_key_var, server === 'tinker' ? hostedTinkerKey : null), server };
}

function tinkerTrainerSpec(config: Pick<RatchetConfig, 'trainer'>): TinkerTrainerSpec {
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
