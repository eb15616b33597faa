import type { ModelConfig, RopeScaling } from '../model/config.ts';
import { rotaryFrequencies } from '../model/rotary.ts';

/** `rope_freqs.weight`: what each rotary frequency is divided by in the models from Llama 3.1 on, whose files say nothing else of it. */

/** Null where the file says it by values. */
export function rotaryFactors(config: ModelConfig): Float32Array | null {
  if (config.ropeScaling?.type !== 'llama3') return null;
  const [plain, stretched] = [{ ...config, ropeScaling: null }, config].map(rotaryFrequencies) as [number[], number[]];
  return Float32Array.from(plain, (frequency, i) => frequency / stretched[i]!);
}

/** Llama 3's own, of which every such model takes these; the other two parameters are looked for. */
const [lowFrequencyFactor, highFrequencyFactor] = [1, 4];
const originalPositions = Array.from({ length: 16 }, (_, i) => 32 * 2 ** i);
const tolerance = 1e-4;

/** The parameters that give these factors, as config.json has them; null where none of Llama 3's do. */
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
