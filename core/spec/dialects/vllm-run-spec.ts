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
  const { gpus, gpu_ids, vllm = {}, program, port, host, weights, weights_agent } = config.inference;
  return {
    program: program ?? null,
    port: port ?? (Number(vllm['port'] ?? 0) || null),
    host: host ?? textOf(vllm['host']) ?? '127.0.0.1',
    // Where only their number is said, the server has the first ones; the trainer's come behind them (prime-rl's order).
    gpuIds: gpu_ids ?? (gpus === undefined ? null : Array.from({ length: gpus }, (_, i) => i)),
    args: vllm,
    ...weightsTaken(config, lora),
    weights,
    weightsAgent: weights_agent ?? null,
  };
}

/** As the older dialects have it, among vLLM's arguments. */
function textOf(value: unknown): string | null {
  return typeof value === 'string' ? value : null;
}
