import type { ModelConfig } from './config.ts';

/**
 * Angle per position of every rotary pair, [headSize / 2] (Su et al. 2021), stretched as config.json says:
 * linear: every frequency ÷ factor (position interpolation, Chen et al. 2023).
 * llama3: wavelengths beyond originalPositions / lowFrequencyFactor ÷ factor, those below originalPositions /
 * highFrequencyFactor as they were, a linear blend between (Llama 3 model card; transformers modeling_rope_utils.py).
 */
export function rotaryFrequencies({
  headSize,
  ropeTheta,
  ropeScaling,
}: Pick<ModelConfig, 'headSize' | 'ropeTheta' | 'ropeScaling'>): number[] {
  const plain = Array.from({ length: headSize / 2 }, (_, i) => ropeTheta ** ((-2 * i) / headSize));
  if (ropeScaling === null) return plain;
  const { factor } = ropeScaling;
  if (ropeScaling.type === 'linear') return plain.map((frequency) => frequency / factor);
  const { lowFrequencyFactor: low, highFrequencyFactor: high, originalPositions } = ropeScaling;
  return plain.map((frequency) => {
    const turns = (originalPositions * frequency) / (2 * Math.PI);
    if (turns < low) return frequency / factor;
    if (turns > high) return frequency;
    const kept = (turns - low) / (high - low);
    return (1 - kept) * (frequency / factor) + kept * frequency;
  });
}
