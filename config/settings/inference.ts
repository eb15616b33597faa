import { z } from 'zod';
import { baseUrl } from '../model-access.ts';
import { TinkerInferenceSpec } from '../tinker-spec.ts';
import { args, choice, text, whole } from '../values.ts';
import { VllmSpec, weightRoutes } from '../vllm-spec.ts';
import type { RatchetConfig } from './index.ts';
import { laterIn } from './later.ts';
import { loraSpec } from './optimizer.ts';
import { places, requests, ServerPoolSpec, serverPoolSpec } from './server-pool.ts';
import { inSpec, setting, table } from './setting.ts';
import { gpuNumbers, moduleSpec, ModuleSpec, own, tinkerServerOf } from './trainer.ts';

/** `[inference]`: who samples. */

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
  kind: setting(
    choice('embedded', 'openai', 'vllm', 'tinker', 'module'),
    'Ratchet’s policy servers, any OpenAI-compatible servers that give token ids, vLLM (started from this file unless `url` names one), the Tinker server that trains, or an inference of your own',
    { default: 'embedded' },
  ),
  ...own('what it is called with'),
  ...places,
  ...requests,
  ...laterIn('inference'),
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
  /** Any OpenAI-compatible servers that give token ids: a request for each turn. */
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
      // The server that trains also samples.
      const { timeoutS, maxConcurrent } = inSpec(requests, inference);
      return { kind, ...tinkerServerOf(config), timeoutS, maxConcurrent };
    }
    case 'module':
      return moduleSpec(inference);
    default:
      return kind satisfies never;
  }
}

/** What a vLLM has to take: adapters, and whether their base is the model that it starts with. */
export function weightsTaken(config: RatchetConfig): Pick<VllmSpec, 'loraRank' | 'servesBase'> {
  const { model, sft, trainer } = config;
  // A Tinker server's warm-up trains adapters as well.
  const isAsItWas = sft === undefined || trainer.kind === 'tinker';
  return { loraRank: loraSpec(config)?.r ?? null, servesBase: isAsItWas && !model.startsWith('preset:') };
}

/** Which vLLM a run wants, out of [inference], and of what is said elsewhere of model and adapters. */
function vllmSpec(config: RatchetConfig): VllmSpec {
  const { vllm = {}, program = null, port, host } = config.inference;
  const gpuIds = serverGpus(config.inference);
  return {
    program,
    port: port ?? (Number(vllm['port'] ?? 0) || null),
    // The older dialects have it among vLLM's arguments.
    host: host ?? (typeof vllm['host'] === 'string' ? vllm['host'] : '127.0.0.1'),
    gpuIds,
    args: gpuIds === null ? vllm : withReplicas(vllm, gpuIds.length),
    ...weightsTaken(config),
    ...inSpec(vllmTaking, config.inference),
  };
}

type Arguments = Readonly<Record<string, unknown>>;

/** Where only their number is said, the server has the first ones; the trainer's come behind them (prime-rl's order). */
export function serverGpus({ gpus, gpu_ids }: Pick<RatchetConfig['inference'], 'gpus' | 'gpu_ids'>): number[] | null {
  return gpu_ids ?? (gpus === undefined ? null : Array.from({ length: gpus }, (_, i) => i));
}

/** GPUs that one copy of the model takes, and how many copies the file asks for; null = it does not say. */
export function copiesOf(vllm: Arguments): { readonly gpusEach: number; readonly copies: number | null } {
  const number = (name: string): number | null => Number(vllm[name] ?? vllm[name.replaceAll('_', '-')] ?? 0) || null;
  const gpusEach = (number('tensor_parallel_size') ?? 1) * (number('pipeline_parallel_size') ?? 1);
  return { gpusEach, copies: number('data_parallel_size') };
}

/** All GPUs of the server are used: where the file does not say how many copies of the model there are, as many as fit (as prime-rl). */
function withReplicas(vllm: VllmSpec['args'], gpus: number): VllmSpec['args'] {
  const { gpusEach, copies } = copiesOf(vllm);
  const fitting = Math.floor(gpus / gpusEach);
  return copies !== null || fitting < 2 ? vllm : { ...vllm, data_parallel_size: fitting };
}
