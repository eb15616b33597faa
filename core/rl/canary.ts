import { canaryDifferenceMax, canaryDifferenceMaxInFloat32, canaryDifferenceMaxQuantized } from '../limits.ts';
import type { VllmSpec } from '../../config/vllm-spec.ts';
import type { RunSpec } from '../../config/run-spec.ts';

/**
 * How far a server's logprobs of the canary may lie from the trainer's, mean |Δ| over its tokens. Two engines that compute in
 * float32 agree far better than two of which one computes in bfloat16. Known to compute in float32 are the embedded engine, unless it
 * samples from quantized weights, and a vLLM that says so itself (`servedType`), or where it does not tell, whose `[inference.vllm] dtype` says so; of a
 * module and of a Tinker server it is not known.
 */
export function canaryThreshold(
  { trainer, inference }: Pick<RunSpec, 'trainer' | 'inference'>,
  servedType: string | null = null,
): number {
  if (inference.kind !== 'module' && inference.kind !== 'tinker' && inference.canaryThreshold !== undefined)
    return inference.canaryThreshold;
  if (inference.kind === 'embedded' && inference.quantize !== undefined) return canaryDifferenceMaxQuantized;
  const isVllmSo = (vllm: VllmSpec): boolean => (servedType === null ? isFloat32(vllm) : servedType === 'float32');
  const isSampledSo = inference.kind === 'embedded' || (inference.kind === 'vllm' && isVllmSo(inference.vllm));
  return trainer.kind === 'onnx' && isSampledSo ? canaryDifferenceMaxInFloat32 : canaryDifferenceMax;
}

/** Whether the file says that the server computes in float32. */
export function isFloat32({ args }: Pick<VllmSpec, 'args'>): boolean {
  return args['dtype'] === 'float32' || args['dtype'] === 'float';
}
