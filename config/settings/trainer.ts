import { z } from 'zod';
import { whatTheyAre } from '../../core/kinds/kinds-of.ts';
import { trainerKinds, trainers } from '../../core/kinds/trainers.ts';
import { choice, whole } from '../toml/values.ts';
import { otherResume } from './checkpoints.ts';
import { codeFile, CodeRef, codeRef } from './code.ts';
import type { RatchetConfig } from './index.ts';
import { correction } from './correction.ts';
import { echo } from './echo.ts';
import { advantage, loss, otherClip } from './learning.ts';
import { optimizer, passes, schedule } from './optimizer.ts';
import { inSpec, setting, specFields, table } from './setting.ts';
import { lengthPenalty, overlongPenalty } from './length-penalty.ts';
import { tinker, TinkerTrainerSpec, tinkerTrainerSpec } from './tinker.ts';
import { primeRl, PrimeRlTrainerSpec, primeRlTrainerSpec } from './prime-rl.ts';
import { honouredByTorch, torch } from './torch.ts';

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
    'which GPUs it sees; by default all, or the one behind those of a vLLM that is started. Of kind "torch": one for each rank',
    { isLeftOut: true },
  ),
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
  ...honouredByTorch,
  ...primeRl,
  ...tinker,
  gpus: setting(
    whole(1),
    'how many GPUs train: ranks of kind "torch". Where the file names no kind, they choose PyTorch if it and they are on this machine',
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
  z.strictObject({
    kind: z.literal('torch'),
    ...specFields(torch),
    ...specFields(honouredByTorch),
    ...specFields(embeddedMemory),
    ...specFields(embeddedGpus),
  }),
  PrimeRlTrainerSpec,
  TinkerTrainerSpec,
  ModuleSpec,
]);
export type TrainerSpec = z.infer<typeof TrainerSpec>;

export function trainerSpec(
  config: Pick<RatchetConfig, 'trainer' | 'seq_len' | 'max_steps' | 'checkpoints'>,
): TrainerSpec {
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
      return {
        kind: 'torch',
        ...inSpec(torch, { ...trainer, ranks: ranksOf(trainer) }),
        ...inSpec(honouredByTorch, trainer),
        ...inSpec(embeddedMemory, trainer),
        ...inSpec(embeddedGpus, trainer),
      };
    case 'prime-rl':
      return primeRlTrainerSpec(config, ranksOf(trainer));
    case 'tinker':
      return tinkerTrainerSpec(config);
    case 'module':
      return moduleSpec(trainer);
    default:
      return trainer.kind satisfies never;
  }
}

function ranksOf({ ranks, gpu_ids, gpus }: RatchetConfig['trainer']): number {
  return ranks ?? gpu_ids?.length ?? gpus ?? 1;
}

/** `import` is set if the kind is "module". */
export function moduleSpec({
  import: file,
  path,
  options,
}: Pick<RatchetConfig['trainer'], 'import' | 'path' | 'options'>): ModuleSpec {
  return { kind: 'module', import: codeRef(file ?? path), options };
}
