import type { AttentionKind, ModelConfig, RopeScaling } from './config.ts';

type Rope = Pick<ModelConfig, 'headSize' | 'ropeTheta' | 'ropeScaling'>;

/**
 * Angle per position of every rotary pair, [headSize / 2] (Su et al. 2021), stretched as config.json says:
 * linear: every frequency ÷ factor (position interpolation, Chen et al. 2023).
 * llama3: wavelengths beyond originalPositions / lowFrequencyFactor ÷ factor, those below originalPositions /
 * highFrequencyFactor as they were, a linear blend between (Llama 3 model card; transformers modeling_rope_utils.py).
 * yarn: by pairs, a linear blend between the pair that turns betaFast times within originalPositions and the one that turns
 * betaSlow times (Peng et al. 2023).
 */
export function rotaryFrequencies({ headSize, ropeTheta, ropeScaling }: Rope): number[] {
  const plain = Array.from({ length: headSize / 2 }, (_, i) => ropeTheta ** ((-2 * i) / headSize));
  if (ropeScaling === null) return plain;
  const { factor } = ropeScaling;
  if (ropeScaling.type === 'linear') return plain.map((frequency) => frequency / factor);
  if (ropeScaling.type === 'yarn') {
    const [low, high] = yarnRange(headSize, ropeTheta, ropeScaling);
    return plain.map((frequency, i) => blend(frequency, factor, 1 - (i - low) / (high - low)));
  }
  const { lowFrequencyFactor: low, highFrequencyFactor: high, originalPositions } = ropeScaling;
  return plain.map((frequency) => {
    const turns = (originalPositions * frequency) / (2 * Math.PI);
    return blend(frequency, factor, (turns - low) / (high - low));
  });
}

/** A layer's frequencies, and the factor on cos and sin. Null in layers without rotary embedding. */
export function rotaryOf(
  config: Rope & Pick<ModelConfig, 'localRopeTheta'>,
  kind: AttentionKind['rotary'],
): { readonly frequencies: readonly number[]; readonly factor: number } | null {
  if (kind === 'none') return null;
  const rope = kind === 'local' ? { ...config, ropeTheta: config.localRopeTheta, ropeScaling: null } : config;
  const { ropeScaling } = rope;
  return {
    frequencies: rotaryFrequencies(rope),
    factor: ropeScaling?.type === 'yarn' ? ropeScaling.attentionFactor : 1,
  };
}

/** `kept` of the frequency as it was, bounded to 0 … 1, the rest of it ÷ factor. */
function blend(frequency: number, factor: number, kept: number): number {
  const share = Math.min(Math.max(kept, 0), 1);
  if (share === 0) return frequency / factor;
  return share === 1 ? frequency : (1 - share) * (frequency / factor) + share * frequency;
}

/** Pairs between which frequencies are blended. */
function yarnRange(
  headSize: number,
  ropeTheta: number,
  { betaFast, betaSlow, originalPositions, truncate }: RopeScaling & { readonly type: 'yarn' },
): readonly [low: number, high: number] {
  const pairOf = (turns: number): number =>
    (headSize * Math.log(originalPositions / (turns * 2 * Math.PI))) / (2 * Math.log(ropeTheta));
  const [first, last] = [pairOf(betaFast), pairOf(betaSlow)];
  const low = Math.max(truncate ? Math.floor(first) : first, 0);
  const high = Math.min(truncate ? Math.ceil(last) : last, headSize - 1);
  return [low, low === high ? high + 0.001 : high];
}
