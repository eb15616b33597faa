import { type VllmSpec } from '../vllm-spec.ts';
import type { RatchetConfig } from './ratchet.ts';

type Lora = { readonly r: number } | null;

/** What a vLLM has to take: adapters, and whether their base is the model that it starts with. */
export function weightsTaken(
  { model, sft, trainer }: Pick<RatchetConfig, 'model' | 'sft' | 'trainer'>,
  lora: Lora,
): Pick<VllmSpec, 'loraRank' | 'servesBase'> {
  // A Tinker server's warm-up trains adapters as well.
  const isAsItWas = sft === undefined || trainer.kind === 'tinker';
  return { loraRank: lora?.r ?? null, servesBase: isAsItWas && !model.startsWith('preset:') };
}

/** Which vLLM a run wants, out of [inference], and of what is said elsewhere of model and adapters. */
export function vllmSpec(config: RatchetConfig, lora: Lora): VllmSpec {
  const { vllm = {}, program, port, host, weights, weights_agent } = config.inference;
  const gpuIds = serverGpus(config.inference);
  return {
    program: program ?? null,
    port: port ?? (Number(vllm['port'] ?? 0) || null),
    host: host ?? textOf(vllm['host']) ?? '127.0.0.1',
    gpuIds,
    args: gpuIds === null ? vllm : withReplicas(vllm, gpuIds.length),
    ...weightsTaken(config, lora),
    weights,
    weightsAgent: weights_agent ?? null,
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

/** As the older dialects have it, among vLLM's arguments. */
function textOf(value: unknown): string | null {
  return typeof value === 'string' ? value : null;
}
