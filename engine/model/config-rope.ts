import { z } from 'zod';
import type { HuggingFaceConfig, ModelConfig } from './config.ts';
import type { Family } from './families.ts';

/** Scaling of the rotary frequencies for longer sequences; `rotary.ts` has the formulas. */
export type RopeScaling =
  | { readonly type: 'linear'; readonly factor: number }
  | {
      readonly type: 'llama3';
      readonly factor: number;
      readonly lowFrequencyFactor: number;
      readonly highFrequencyFactor: number;
      /** Longest sequence of the training before the stretching. */
      readonly originalPositions: number;
    }
  | {
      readonly type: 'yarn';
      readonly factor: number;
      readonly originalPositions: number;
      /** Turns within originalPositions from which on a frequency is kept, and up to which it is stretched whole. */
      readonly betaFast: number;
      readonly betaSlow: number;
      /** The bounds between them are whole pairs. */
      readonly truncate: boolean;
      /** cos and sin are multiplied by it. */
      readonly attentionFactor: number;
    };

const positive = z.number().positive();

/** `type` is the older spelling of `rope_type`. */
const OneRope = z.looseObject({
  rope_type: z.string().optional(),
  type: z.string().optional(),
  rope_theta: positive.optional(),
  factor: positive.nullish(),
  low_freq_factor: positive.optional(),
  high_freq_factor: positive.optional(),
  original_max_position_embeddings: positive.optional(),
  beta_fast: positive.nullish(),
  beta_slow: positive.nullish(),
  mscale: z.number().nullish(),
  mscale_all_dim: z.number().nullish(),
  attention_factor: positive.nullish(),
  truncate: z.boolean().nullish(),
  partial_rotary_factor: positive.optional(),
});
type OneRope = z.infer<typeof OneRope>;

/** Gemma's has one of each kind of layer. */
export const RopeParameters = OneRope.extend({
  full_attention: OneRope.nullish(),
  sliding_attention: OneRope.nullish(),
});
type RopeParameters = z.infer<typeof RopeParameters>;

const defaultLocalTheta = 10_000;

type Refuse = (expected: string, received: string) => Error;

/** `refuse` makes the error for an unsupported kind. */
export function readRope(
  raw: HuggingFaceConfig,
  family: Family,
  refuse: Refuse,
): Pick<ModelConfig, 'ropeTheta' | 'ropeScaling' | 'localRopeTheta'> {
  const stated = ropeParameters(raw);
  const rope = stated.full_attention ?? stated;
  const rotaryPart = rope.partial_rotary_factor ?? raw['partial_rotary_factor'] ?? 1;
  if (rotaryPart !== 1) throw refuse('partial_rotary_factor 1', JSON.stringify(rotaryPart));
  const local = family.isGemma ? (stated.sliding_attention ?? {}) : {};
  const localType = local.rope_type ?? local.type ?? 'default';
  if (localType !== 'default') throw refuse('rope_type "default" of sliding_attention', `"${localType}"`);
  return {
    ropeTheta: rope.rope_theta ?? raw.rope_theta ?? family.ropeTheta,
    ropeScaling: ropeScaling(rope, raw, refuse),
    localRopeTheta: local.rope_theta ?? raw.rope_local_base_freq ?? defaultLocalTheta,
  };
}

/** The older name wins over the newer unless it is empty, as in transformers. */
function ropeParameters({ rope_scaling: older, rope_parameters: newer }: HuggingFaceConfig): RopeParameters {
  return older && Object.keys(older).length > 0 ? older : (newer ?? {});
}

function ropeScaling(rope: OneRope, raw: HuggingFaceConfig, refuse: Refuse): RopeScaling | null {
  const numberOf = (name: keyof OneRope): number => {
    const value = rope[name];
    if (typeof value !== 'number') throw refuse(`"${name}" beside the rope_type "${type}"`, 'none');
    return value;
  };
  const type = rope.rope_type ?? rope.type ?? 'default';
  switch (type) {
    case 'default':
      return null;
    case 'linear':
      return { type, factor: numberOf('factor') };
    case 'llama3':
      return {
        type,
        factor: numberOf('factor'),
        lowFrequencyFactor: numberOf('low_freq_factor'),
        highFrequencyFactor: numberOf('high_freq_factor'),
        originalPositions: numberOf('original_max_position_embeddings'),
      };
    case 'yarn': {
      const originalPositions = rope.original_max_position_embeddings ?? raw.max_position_embeddings;
      const factor = rope.factor ?? raw.max_position_embeddings / originalPositions;
      return {
        type,
        factor,
        originalPositions,
        betaFast: rope.beta_fast ?? 32,
        betaSlow: rope.beta_slow ?? 1,
        truncate: rope.truncate ?? true,
        attentionFactor: rope.attention_factor ?? attentionFactor(factor, rope),
      };
    }
    default:
      throw refuse('rope_type "default", "linear", "llama3" or "yarn"', `"${type}"`);
  }
}

/** Peng et al. 2023 (YaRN), section 3.4; `mscale` and `mscale_all_dim` are DeepSeek's. */
function attentionFactor(factor: number, { mscale, mscale_all_dim: ofAll }: OneRope): number {
  const grown = (scale: number): number => (factor <= 1 ? 1 : 0.1 * scale * Math.log(factor) + 1);
  return mscale && ofAll ? grown(mscale) / grown(ofAll) : grown(1);
}
