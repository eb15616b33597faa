import { inferenceTraits } from '../../kinds/inference.ts';
import { trainerTraits } from '../../kinds/trainers.ts';
import { canaryDifferenceMax, canaryDifferenceMaxInFloat32, canaryDifferenceMaxQuantized } from '../../limits.ts';
import type { JsonValue } from '../../json-value.ts';
import type { RunSettings } from '../../settings/run.ts';

/** Logprobs that the trainer gives to a few tokens, to be compared with the sampler's. */
export interface Canary {
  readonly digest: string;
  /** The beginning of a row of the batch. */
  readonly tokenIds: readonly number[];
  /** Indices of the tokens that were scored, ascending, from 1. */
  readonly positions: readonly number[];
  /** log softmax(logits) of each of them, temperature 1. */
  readonly logprobs: readonly number[];
}

/**
 * Largest accepted difference between a server's and the trainer's log probabilities of the canary, mean |Δ| over its
 * tokens. Two engines that compute in float32 agree far better than a pair of float32 and bfloat16. Which kinds compute
 * in float32 is a trait (`computesInFloat32`). Otherwise the trainer's `dtype` says it; the server reports its type (`servedType`), or else
 * `[inference.vllm] dtype` states it. Quantized weights get the wider bound.
 */
export function canaryThreshold(
  { trainer, inference }: Pick<RunSettings, 'trainer' | 'inference'>,
  servedType: string | null = null,
): number {
  const { canaryThreshold: said, quantize } = inference;
  if (said !== undefined) return said;
  const { engine, computesInFloat32: sampled } = inferenceTraits(inference);
  if (engine === 'embedded' && quantize !== undefined) return canaryDifferenceMaxQuantized;
  const isSaid =
    servedType === null ? inference.vllm !== undefined && isFloat32(inference.vllm) : servedType === 'float32';
  const isSampledSo = sampled === 'always' || (sampled === 'said' && isSaid);
  const { computesInFloat32: trained } = trainerTraits(trainer);
  const isTrainedSo = trained === 'always' || (trained === 'said' && computesExactly(trainer));
  return isTrainedSo && isSampledSo ? canaryDifferenceMaxInFloat32 : canaryDifferenceMax;
}

/** A base in 4 bits differs from the weights that servers have. */
function computesExactly(trainer: RunSettings['trainer']): boolean {
  const { dtype = 'float32', loadIn4bit = false } = trainer;
  return dtype === 'float32' && !loadIn4bit;
}

/** Whether the file says that the server computes in float32. */
export function isFloat32({ args }: { readonly args: Readonly<Record<string, JsonValue>> }): boolean {
  return args['dtype'] === 'float32' || args['dtype'] === 'float';
}
