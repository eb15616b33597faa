import { z } from 'zod';
import { inferenceKinds, inferences } from '../../core/kinds/inference.ts';
import { whatTheyAre } from '../../core/kinds/kinds-of.ts';
import { trainerTraits } from '../../core/kinds/trainers.ts';
import { baseUrl } from '../models/model-access.ts';
import { TinkerInferenceSpec } from '../models/tinker-spec.ts';
import { args, choice, text, whole } from '../toml/values.ts';
import { VllmSpec, weightRoutes } from '../models/vllm-spec.ts';
import type { RatchetConfig } from './index.ts';
import { loraSpec } from './optimizer.ts';
import { places, requests, ServerPoolSpec, serverPoolSpec } from './server-pool.ts';
import { inSpec, setting, table } from './setting.ts';
import { tinkerServerOf } from './tinker.ts';
import { gpuNumbers, moduleSpec, ModuleSpec, own } from './trainer.ts';

/** `[inference]`: the source of samples. */

const vllmTaking = {
  weights: setting(
    choice(...weightRoutes),
    'of "vllm", how full weights reach it: by vLLM’s development routes, by prime-rl’s /update_weights, or by what it has',
    { default: 'auto' },
  ),
  weights_agent: setting(
    baseUrl(),
    'of "vllm" on another host: the `ratchet weights-agent` beside it; without one it reads the run’s folder itself',
  ),
};

export const inference = table({
  kind: setting(choice(...inferenceKinds), whatTheyAre(inferences), { default: 'embedded' }),
  ...own('what it is called with'),
  ...places,
  ...requests,
  gpus: setting(whole(0), 'of "vllm" that is started: how many GPUs it sees, the first ones'),
  gpu_ids: setting(gpuNumbers(), 'of "vllm" that is started: which GPUs it sees, in place of `gpus`'),
  vllm: setting(
    args(),
    'of "vllm" that is started: any argument of its server, with underscores; `dtype` also of one that runs already and does not tell it',
  ),
  program: setting(
    text(),
    'of "vllm" that is started: the Python that has vLLM, or the program `vllm`; by default looked for',
  ),
  port: setting(whole(1), 'of "vllm" that is started; 8000 by default, or another if that is taken'),
  host: setting(
    text(),
    'of "vllm" that is started: where it listens, 127.0.0.1 by default; elsewhere it needs `api_key_var`',
  ),
  ...vllmTaking,
});

export const InferenceSpec = z.discriminatedUnion('kind', [
  /** Ratchet's policy servers: many prompts in one request, each with a seed of its own. */
  z.strictObject({ kind: z.literal('embedded'), ...ServerPoolSpec.shape }),
  /** Any OpenAI-compatible servers that give token ids: one request per turn. */
  z.strictObject({ kind: z.literal('openai'), ...ServerPoolSpec.shape }),
  /** vLLM: adopted (`url`), or started beside the workers. */
  z.strictObject({ kind: z.literal('vllm'), ...ServerPoolSpec.shape, vllm: VllmSpec }),
  TinkerInferenceSpec,
  ModuleSpec,
]);
export type InferenceSpec = z.infer<typeof InferenceSpec>;

export function inferenceSpec(config: RatchetConfig): InferenceSpec {
  const { inference } = config;
  const { kind } = inference;
  switch (kind) {
    case 'embedded':
    case 'openai':
      return { kind, ...serverPoolSpec(config) };
    case 'vllm':
      return { kind, ...serverPoolSpec(config), vllm: vllmSpec(config) };
    case 'tinker': {
      // The training server also samples.
      const { timeoutS, maxConcurrent } = inSpec(requests, inference);
      return { kind, ...tinkerServerOf(config), timeoutS, maxConcurrent };
    }
    case 'module':
      return moduleSpec(inference);
    default:
      return kind satisfies never;
  }
}

/** Requirements on vLLM: adapters, and whether their base is the model that it starts with. */
export function weightsTaken(config: RatchetConfig): Pick<VllmSpec, 'loraRank' | 'servesBase'> {
  const { model, sft, trainer } = config;
  const lora = loraSpec(config);
  const isAsItWas = sft === undefined || (lora !== null && trainerTraits(trainer).trains === 'adapters');
  return { loraRank: lora?.r ?? null, servesBase: isAsItWas && !model.startsWith('preset:') };
}

/** The vLLM of a run, from [inference] and the settings of model and adapters. */
function vllmSpec(config: RatchetConfig): VllmSpec {
  const { vllm = {}, program = null, port, host } = config.inference;
  const gpuIds = serverGpus(config.inference);
  return {
    program,
    port: port ?? (Number(vllm['port'] ?? 0) || null),
    // The older dialects write it among vLLM's arguments.
    host: host ?? (typeof vllm['host'] === 'string' ? vllm['host'] : '127.0.0.1'),
    gpuIds,
    args: gpuIds === null ? vllm : withReplicas(vllm, gpuIds.length),
    ...weightsTaken(config),
    ...inSpec(vllmTaking, config.inference),
  };
}

type Arguments = Readonly<Record<string, unknown>>;

/** A mere number means the first GPUs; the trainer's come after them (prime-rl's order). */
export function serverGpus({ gpus, gpu_ids }: Pick<RatchetConfig['inference'], 'gpus' | 'gpu_ids'>): number[] | null {
  return gpu_ids ?? (gpus === undefined ? null : Array.from({ length: gpus }, (_, i) => i));
}

/** GPUs per copy of the model, and the number of copies in the file; null = unset. */
export function copiesOf(vllm: Arguments): { readonly gpusEach: number; readonly copies: number | null } {
  const number = (name: string): number | null => Number(vllm[name] ?? vllm[name.replaceAll('_', '-')] ?? 0) || null;
  const gpusEach = (number('tensor_parallel_size') ?? 1) * (number('pipeline_parallel_size') ?? 1);
  return { gpusEach, copies: number('data_parallel_size') };
}

/** Uses all GPUs of the server: without a number of copies in the file, as many as fit (like prime-rl). */
function withReplicas(vllm: VllmSpec['args'], gpus: number): VllmSpec['args'] {
  const { gpusEach, copies } = copiesOf(vllm);
  const fitting = Math.floor(gpus / gpusEach);
  return copies !== null || fitting < 2 ? vllm : { ...vllm, data_parallel_size: fitting };
}
