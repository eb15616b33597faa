import type { ModelConfig, RopeScaling } from '../model/config.ts';
import { rotaryFrequencies } from '../model/rotary.ts';

/**
 * `rope_freqs.weight`: divisors of the rotary frequencies in models from Llama 3.1 on. Their files contain nothing else
 * about scaling.
 */

/** Null if the file states the scaling as values. */
export function rotaryFactors(config: ModelConfig): Float32Array | null {
  if (config.ropeScaling?.type !== 'llama3') return null;
  const [plain, stretched] = [{ ...config, ropeScaling: null }, config].map(rotaryFrequencies) as [number[], number[]];
  return Float32Array.from(plain, (frequency, i) => frequency / stretched[i]!);
}

/** Llama 3's defaults, which all its models use; the other two parameters are searched. */
const [lowFrequencyFactor, highFrequencyFactor] = [1, 4];
const originalPositions = Array.from({ length: 16 }, (_, i) => 32 * 2 ** i);
const tolerance = 1e-4;

/** The config.json parameters that give these factors; null if no parameters of Llama 3 do. */
export function scalingOfFactors(
  factors: Float32Array,
  shape: Pick<ModelConfig, 'headSize' | 'ropeTheta'>,
): (RopeScaling & { readonly type: 'llama3' }) | null {
  const factor = Math.max(...factors);
  const candidates = originalPositions.map((positions) => ({
    type: 'llama3' as const,
    factor,
    lowFrequencyFactor,
    highFrequencyFactor,
    originalPositions: positions,
  }));
  const plain = rotaryFrequencies({ ...shape, ropeScaling: null });
  const fits = (ropeScaling: RopeScaling): boolean =>
    rotaryFrequencies({ ...shape, ropeScaling }).every(
      (frequency, i) => Math.abs(plain[i]! / frequency / factors[i]! - 1) < tolerance,
    );
  return factors.length === plain.length ? (candidates.find(fits) ?? null) : null;
}
