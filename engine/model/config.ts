import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { problemsIn } from '../../core/problems-in.ts';
import { contextPositionsMax } from '../limits.ts';
import { readRope, RopeParameters, type RopeScaling } from './config-rope.ts';
import { attentionPattern, expertsOf, type Experts, families, familyOf, type AttentionKind } from './families.ts';
import { parseJson } from './text-files.ts';

export type { AttentionKind, Experts, RopeScaling };
export type ModelFamily = (typeof families)[number];

/** The shape of a decoder of one of the families, as its config.json gives it. */
export interface ModelConfig {
  /** config.json's model_type. The fields below spell out its meaning for the computation. */
  readonly family: ModelFamily;
  readonly vocabularySize: number;
  readonly hiddenSize: number;
  readonly layerCount: number;
  readonly headCount: number;
  /** Heads of keys and values; headCount is a multiple of it. */
  readonly keyValueHeadCount: number;
  readonly headSize: number;
  readonly feedForwardSize: number;
  /** In place of the feed-forward network of every layer; null = there are none. */
  readonly experts: Experts | null;
  readonly activation: 'silu' | 'gelu_tanh';
  readonly normEpsilon: number;
  /** Norms multiply by 1 + weight (Gemma). */
  readonly normsAddOne: boolean;
  /** Outputs of attention and feed-forward network are normalized before they are added (Gemma). */
  readonly sandwichNorms: boolean;
  /** RMSNorm of every head of query and key, before the rotary embedding (Qwen3, Gemma 3). */
  readonly queryKeyNorm: boolean;
  /** q_proj, k_proj and v_proj have a bias (Qwen2 always). */
  readonly queryKeyValueBias: boolean;
  /** o_proj has a bias. */
  readonly attentionOutputBias: boolean;
  /** gate_proj, up_proj and down_proj have a bias. */
  readonly feedForwardBias: boolean;
  /** Embeddings are multiplied by it (Gemma: √hiddenSize). */
  readonly embeddingScale: number;
  /** Scores are multiplied by it: 1 / √headSize but in Gemma. */
  readonly attentionScale: number;
  /** Attention of each layer; the pattern repeats over the layers. */
  readonly attention: readonly AttentionKind[];
  readonly ropeTheta: number;
  readonly ropeScaling: RopeScaling | null;
  /** Theta of layers whose rotary embedding is `local`. */
  readonly localRopeTheta: number;
  /** The output layer is the embedding table. */
  readonly tiedEmbeddings: boolean;
  /** Longest sequence, prompt and completion together. */
  readonly positionsMax: number;
  /** Sampling ends at any of these. */
  readonly endTokenIds: readonly number[];
}

const size = z.int().positive();
const positive = z.number().positive();
const tokenId = z.int().min(0);

const HuggingFaceConfig = z.looseObject({
  model_type: z.enum(families),
  vocab_size: size,
  hidden_size: size,
  num_hidden_layers: size,
  num_attention_heads: size,
  num_key_value_heads: size.nullish(),
  head_dim: size.nullish(),
  intermediate_size: size,
  rms_norm_eps: positive.default(1e-6),
  rope_theta: positive.optional(),
  rope_local_base_freq: positive.nullish(),
  rope_parameters: RopeParameters.nullish(),
  rope_scaling: RopeParameters.nullish(),
  tie_word_embeddings: z.boolean().optional(),
  max_position_embeddings: size,
  eos_token_id: z.union([tokenId, z.array(tokenId)]).nullish(),
  hidden_act: z.string().default('silu'),
  hidden_activation: z.string().nullish(),
  attention_bias: z.boolean().default(false),
  mlp_bias: z.boolean().default(false),
  use_sliding_window: z.boolean().optional(),
  sliding_window: size.nullish(),
  sliding_window_pattern: size.nullish(),
  layer_types: z.array(z.string()).nullish(),
  no_rope_layers: z.array(z.int().min(0).max(1)).nullish(),
  no_rope_layer_interval: size.nullish(),
  query_pre_attn_scalar: positive.nullish(),
  attn_logit_softcapping: positive.nullish(),
  final_logit_softcapping: positive.nullish(),
  use_bidirectional_attention: z.boolean().nullish(),
  num_experts: size.nullish(),
  num_local_experts: size.nullish(),
  num_experts_per_tok: size.nullish(),
  moe_intermediate_size: size.nullish(),
  norm_topk_prob: z.boolean().default(false),
  decoder_sparse_step: z.int().default(1),
  mlp_only_layers: z.array(z.int()).nullish(),
  quantization_config: z.unknown().optional(),
});
export type HuggingFaceConfig = z.infer<typeof HuggingFaceConfig>;

/** Parses a config.json. Throws for models that the engine cannot compute, before any weight is read. */
export function parseModelConfig(text: string, where: string): ModelConfig {
  const raw = parseJson(text, where, 'a Hugging Face config.json');
  requireFamily(raw, where);
  const parsed = HuggingFaceConfig.safeParse(raw);
  if (!parsed.success) throw unsupported(where, 'a complete config.json', problemsIn(parsed.error));
  requireSupported(parsed.data, where);
  const config = fromHuggingFace(parsed.data, where);
  requireShape(config, where);
  return config;
}

function requireFamily(raw: unknown, where: string): void {
  const type = typeof raw === 'object' && raw !== null && 'model_type' in raw ? raw.model_type : undefined;
  if (typeof type === 'string' && (families as readonly string[]).includes(type)) return;
  const known = families.map((family) => `"${family}"`).join(', ');
  throw unsupported(where, `model_type to be one of ${known}`, JSON.stringify(type) ?? 'no model_type');
}

function fromHuggingFace(raw: HuggingFaceConfig, where: string): ModelConfig {
  const end = raw.eos_token_id ?? [];
  const family = familyOf(raw.model_type);
  const headCount = raw.num_attention_heads;
  // null means "as many as heads" in every family; defaults for a missing value differ between transformers' classes.
  const keyValueHeads = raw.num_key_value_heads === undefined ? family.keyValueHeadCount : raw.num_key_value_heads;
  const headSize = raw.head_dim ?? family.headSize ?? Math.floor(raw.hidden_size / headCount);
  const positionsMax = Math.min(raw.max_position_embeddings, contextPositionsMax);
  const rope = readRope(raw, family, (expected, received) => unsupported(where, expected, received));
  return {
    family: raw.model_type,
    vocabularySize: raw.vocab_size,
    hiddenSize: raw.hidden_size,
    layerCount: raw.num_hidden_layers,
    headCount,
    keyValueHeadCount: keyValueHeads ?? headCount,
    headSize,
    feedForwardSize: raw.intermediate_size,
    experts: expertsOf(raw),
    activation: family.activation,
    normEpsilon: raw.rms_norm_eps,
    normsAddOne: family.isGemma,
    sandwichNorms: family.isGemma,
    queryKeyNorm: family.queryKeyNorm,
    ...biases(raw),
    embeddingScale: family.isGemma ? Math.sqrt(raw.hidden_size) : 1,
    attentionScale: 1 / Math.sqrt(family.isGemma ? (raw.query_pre_attn_scalar ?? 256) : headSize),
    attention: attentionPattern(raw, positionsMax),
    ...rope,
    tiedEmbeddings: raw.tie_word_embeddings ?? family.tiesEmbeddings,
    positionsMax,
    endTokenIds: typeof end === 'number' ? [end] : end,
  };
}

type Biases = Pick<ModelConfig, 'queryKeyValueBias' | 'attentionOutputBias' | 'feedForwardBias'>;

/** Qwen2 fixes its biases in code, Mistral has none; Llama and SmolLM3 alone read mlp_bias. */
function biases(raw: HuggingFaceConfig): Biases {
  const none = { queryKeyValueBias: false, attentionOutputBias: false, feedForwardBias: false };
  if (raw.model_type === 'qwen2') return { ...none, queryKeyValueBias: true };
  if (raw.model_type === 'mistral') return none;
  return {
    queryKeyValueBias: raw.attention_bias,
    attentionOutputBias: raw.attention_bias,
    feedForwardBias: (raw.model_type === 'llama' || raw.model_type === 'smollm3') && raw.mlp_bias,
  };
}

function requireSupported(raw: HuggingFaceConfig, where: string): void {
  const require = (holds: boolean, expected: string, received: string): void => {
    if (!holds) throw unsupported(where, expected, received);
  };
  const { isGemma, windows, layers } = familyOf(raw.model_type);
  const activation = (isGemma ? raw.hidden_activation : raw.hidden_act) ?? 'gelu_pytorch_tanh';
  const named = isGemma ? 'hidden_activation' : 'hidden_act';
  const expected = isGemma ? 'gelu_pytorch_tanh' : 'silu';
  require(activation === expected, `${named} "${expected}"`, `"${activation}"`);
  require(raw.quantization_config == null, 'weights that are not quantized', 'a quantization_config');
  // Qwen's configs carry a window that they do not use; in other families a window that is there is used.
  const usesWindow = raw.use_sliding_window ?? (raw.model_type === 'llama' && raw.sliding_window != null);
  require(windows || !usesWindow, 'no sliding window', `sliding_window ${raw.sliding_window ?? 'in use'}`);
  const otherLayer = raw.layer_types?.find((type) => !layers.includes(type));
  require(otherLayer ===
    undefined, `layer_types of ${layers.map((type) => `"${type}"`).join(' and ')} alone`, `"${otherLayer}"`);
  const listed = isGemma ? raw.layer_types : raw.model_type === 'smollm3' ? raw.no_rope_layers : null;
  const isListed = listed == null || listed.length >= raw.num_hidden_layers;
  require(isListed, `layer_types or no_rope_layers of ${raw.num_hidden_layers} layers`, `${listed?.length}`);
  require(raw.use_bidirectional_attention !== true, 'attention to what came before', 'use_bidirectional_attention');
  for (const name of ['attn_logit_softcapping', 'final_logit_softcapping'] as const)
    require(raw[name] == null, `no ${name}`, String(raw[name]));
  const areMixed = raw.decoder_sparse_step === 1 && (raw.mlp_only_layers ?? []).length === 0;
  require(raw.model_type !== 'qwen3_moe' ||
    areMixed, 'experts in every layer', 'decoder_sparse_step or mlp_only_layers');
}

function requireShape(config: ModelConfig, where: string): void {
  const { headSize, headCount, keyValueHeadCount: keyValueHeads, experts } = config;
  if (experts && experts.perToken > experts.count)
    throw unsupported(where, `num_experts_per_tok up to ${experts.count}`, `${experts.perToken}`);
  if (headSize % 16 !== 0) throw unsupported(where, 'head_dim to be a multiple of 16', `${headSize}`);
  if (headCount % keyValueHeads === 0) return;
  const expected = 'num_attention_heads to be a multiple of num_key_value_heads';
  throw unsupported(where, expected, `${headCount} and ${keyValueHeads}`);
}

function unsupported(where: string, expected: string, received: string): RatchetError {
  return new RatchetError(
    'ModelUnsupported',
    `${where}: expected ${expected}, got ${received}. The embedded engine computes decoders of the families ` +
      `Qwen3 (experts, too), Qwen2/2.5, Llama 2/3, Mistral, SmolLM2/3 and Gemma 3; use such a model, or an external inference server and trainer for this one.`,
  );
}
