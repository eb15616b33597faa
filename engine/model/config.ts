import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { contextPositionsMax } from '../limits.ts';
import { parseJson } from './text-files.ts';

export type ModelFamily = 'qwen3' | 'qwen2' | 'llama';

/** The shape of a decoder of one of the families, as its config.json gives it. */
export interface ModelConfig {
  /** config.json's model_type. What it means for the computation is spelled out in the fields below. */
  readonly family: ModelFamily;
  readonly vocabularySize: number;
  readonly hiddenSize: number;
  readonly layerCount: number;
  readonly headCount: number;
  /** Heads of keys and values; headCount is a multiple of it. */
  readonly keyValueHeadCount: number;
  readonly headSize: number;
  readonly feedForwardSize: number;
  readonly normEpsilon: number;
  /** RMSNorm of every head of query and key, before the rotary embedding (Qwen3). */
  readonly queryKeyNorm: boolean;
  /** q_proj, k_proj and v_proj have a bias (Qwen2 always). */
  readonly queryKeyValueBias: boolean;
  /** o_proj has a bias. */
  readonly attentionOutputBias: boolean;
  /** gate_proj, up_proj and down_proj have a bias. */
  readonly feedForwardBias: boolean;
  readonly ropeTheta: number;
  readonly ropeScaling: RopeScaling | null;
  /** The output layer is the embedding table. */
  readonly tiedEmbeddings: boolean;
  /** Longest sequence, prompt and completion together. */
  readonly positionsMax: number;
  /** Sampling ends at any of these. */
  readonly endTokenIds: readonly number[];
}

/** How the rotary frequencies were stretched for longer sequences; `rotaryFrequencies` has the formulas. */
export type RopeScaling =
  | { readonly type: 'linear'; readonly factor: number }
  | {
      readonly type: 'llama3';
      readonly factor: number;
      readonly lowFrequencyFactor: number;
      readonly highFrequencyFactor: number;
      /** Longest sequence of the training before the stretching. */
      readonly originalPositions: number;
    };

const size = z.int().positive();
const positive = z.number().positive();
const tokenId = z.int().min(0);

/** `type` is the older spelling of `rope_type`. */
const RopeParameters = z.looseObject({
  rope_type: z.string().optional(),
  type: z.string().optional(),
  rope_theta: positive.optional(),
  factor: positive.optional(),
  low_freq_factor: positive.optional(),
  high_freq_factor: positive.optional(),
  original_max_position_embeddings: positive.optional(),
  partial_rotary_factor: positive.optional(),
});
type RopeParameters = z.infer<typeof RopeParameters>;

const HuggingFaceConfig = z.looseObject({
  model_type: z.enum(['qwen3', 'qwen2', 'llama']),
  vocab_size: size,
  hidden_size: size,
  num_hidden_layers: size,
  num_attention_heads: size,
  num_key_value_heads: size.nullish(),
  head_dim: size.nullish(),
  intermediate_size: size,
  rms_norm_eps: positive.default(1e-6),
  rope_theta: positive.optional(),
  rope_parameters: RopeParameters.nullish(),
  rope_scaling: RopeParameters.nullish(),
  tie_word_embeddings: z.boolean().default(false),
  max_position_embeddings: size,
  eos_token_id: z.union([tokenId, z.array(tokenId)]).nullish(),
  hidden_act: z.string().default('silu'),
  attention_bias: z.boolean().default(false),
  mlp_bias: z.boolean().default(false),
  use_sliding_window: z.boolean().optional(),
  sliding_window: size.nullish(),
  layer_types: z.array(z.string()).nullish(),
  quantization_config: z.unknown().optional(),
});
type HuggingFaceConfig = z.infer<typeof HuggingFaceConfig>;

const families: readonly string[] = HuggingFaceConfig.shape.model_type.options;

/** What transformers' config classes put in where config.json is silent. */
const defaultRopeTheta = 10_000;
const qwen3HeadSize = 128;
const qwenKeyValueHeadCount = 32;

/** Reads the text of a config.json. What the engine cannot compute is refused here, before any weight is read. */
export function parseModelConfig(text: string, where: string): ModelConfig {
  const raw = parseJson(text, where, 'a Hugging Face config.json');
  requireFamily(raw, where);
  const parsed = HuggingFaceConfig.safeParse(raw);
  if (!parsed.success) throw unsupported(where, 'a complete config.json', z.prettifyError(parsed.error));
  requireSupported(parsed.data, where);
  const config = fromHuggingFace(parsed.data, where);
  requireShape(config, where);
  return config;
}

function requireFamily(raw: unknown, where: string): void {
  const type = typeof raw === 'object' && raw !== null && 'model_type' in raw ? raw.model_type : undefined;
  if (typeof type === 'string' && families.includes(type)) return;
  const known = families.map((family) => `"${family}"`).join(', ');
  throw unsupported(where, `model_type to be one of ${known}`, JSON.stringify(type) ?? 'no model_type');
}

function fromHuggingFace(raw: HuggingFaceConfig, where: string): ModelConfig {
  const end = raw.eos_token_id ?? [];
  const rope = ropeParameters(raw);
  return {
    family: raw.model_type,
    vocabularySize: raw.vocab_size,
    hiddenSize: raw.hidden_size,
    layerCount: raw.num_hidden_layers,
    headCount: raw.num_attention_heads,
    keyValueHeadCount: keyValueHeadCount(raw),
    headSize: raw.head_dim ?? defaultHeadSize(raw),
    feedForwardSize: raw.intermediate_size,
    normEpsilon: raw.rms_norm_eps,
    ...biases(raw),
    queryKeyNorm: raw.model_type === 'qwen3',
    ropeTheta: rope.rope_theta ?? raw.rope_theta ?? defaultRopeTheta,
    ropeScaling: ropeScaling(rope, where),
    tiedEmbeddings: raw.tie_word_embeddings,
    positionsMax: Math.min(raw.max_position_embeddings, contextPositionsMax),
    endTokenIds: typeof end === 'number' ? [end] : end,
  };
}

/** Where both are there, the older name goes first unless it is empty: so transformers has it. */
function ropeParameters({ rope_scaling: older, rope_parameters: newer }: HuggingFaceConfig): RopeParameters {
  return older && Object.keys(older).length > 0 ? older : (newer ?? {});
}

function keyValueHeadCount(raw: HuggingFaceConfig): number {
  if (raw.num_key_value_heads != null) return raw.num_key_value_heads;
  const isNamed = raw.num_key_value_heads === null; // null means "as many as heads" everywhere
  return raw.model_type === 'llama' || isNamed ? raw.num_attention_heads : qwenKeyValueHeadCount;
}

function defaultHeadSize(raw: HuggingFaceConfig): number {
  return raw.model_type === 'qwen3' ? qwen3HeadSize : Math.floor(raw.hidden_size / raw.num_attention_heads);
}

type Biases = Pick<ModelConfig, 'queryKeyValueBias' | 'attentionOutputBias' | 'feedForwardBias'>;

/** Qwen2 fixes its biases in code; only Llama reads mlp_bias. */
function biases(raw: HuggingFaceConfig): Biases {
  if (raw.model_type === 'qwen2')
    return { queryKeyValueBias: true, attentionOutputBias: false, feedForwardBias: false };
  return {
    queryKeyValueBias: raw.attention_bias,
    attentionOutputBias: raw.attention_bias,
    feedForwardBias: raw.model_type === 'llama' && raw.mlp_bias,
  };
}

function ropeScaling(rope: RopeParameters, where: string): RopeScaling | null {
  const numberOf = (name: keyof RopeParameters): number => {
    const value = rope[name];
    if (typeof value !== 'number') throw unsupported(where, `"${name}" beside the rope_type "${type}"`, 'none');
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
    default:
      throw unsupported(where, 'rope_type "default", "linear" or "llama3"', `"${type}"`);
  }
}

function requireSupported(raw: HuggingFaceConfig, where: string): void {
  const require = (holds: boolean, expected: string, received: string): void => {
    if (!holds) throw unsupported(where, expected, received);
  };
  require(raw.hidden_act === 'silu', 'hidden_act "silu"', `"${raw.hidden_act}"`);
  require(raw.quantization_config == null, 'weights that are not quantized', 'a quantization_config');
  // Qwen's configs carry a window that they do not use; in other families a window that is there is used.
  const usesWindow = raw.use_sliding_window ?? (raw.model_type === 'llama' && raw.sliding_window != null);
  require(!usesWindow, 'no sliding window', `sliding_window ${raw.sliding_window ?? 'in use'}`);
  const otherLayer = raw.layer_types?.find((type) => type !== 'full_attention');
  require(otherLayer === undefined, 'layer_types of "full_attention" alone', `"${otherLayer}"`);
  const rotaryPart = ropeParameters(raw).partial_rotary_factor ?? raw['partial_rotary_factor'] ?? 1;
  require(rotaryPart === 1, 'partial_rotary_factor 1', JSON.stringify(rotaryPart));
}

function requireShape({ headSize, headCount, keyValueHeadCount: keyValueHeads }: ModelConfig, where: string): void {
  if (headSize % 16 !== 0) throw unsupported(where, 'head_dim to be a multiple of 16', `${headSize}`);
  if (headCount % keyValueHeads === 0) return;
  const expected = 'num_attention_heads to be a multiple of num_key_value_heads';
  throw unsupported(where, expected, `${headCount} and ${keyValueHeads}`);
}

function unsupported(where: string, expected: string, received: string): RatchetError {
  return new RatchetError(
    'ModelUnsupported',
    `${where}: expected ${expected}, got ${received}. The embedded engine computes dense decoders of the families ` +
      `Qwen3, Qwen2/2.5 and Llama 2/3; use such a model, or an external inference server and trainer for this one.`,
  );
}
