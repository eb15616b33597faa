import { totalmem } from 'node:os';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { contextPositionsMax, memoryShareMax } from '../limits.ts';

/** The shape of a Qwen3-type decoder, as its config.json gives it. */
export interface ModelConfig {
  readonly vocabularySize: number;
  readonly hiddenSize: number;
  readonly layerCount: number;
  readonly headCount: number;
  /** Heads of keys and values; headCount is a multiple of it. */
  readonly keyValueHeadCount: number;
  readonly headSize: number;
  readonly feedForwardSize: number;
  readonly normEpsilon: number;
  readonly ropeTheta: number;
  /** The output layer is the embedding table. */
  readonly tiedEmbeddings: boolean;
  /** Longest sequence, prompt and completion together. */
  readonly positionsMax: number;
  /** Sampling ends at any of these. */
  readonly endTokenIds: readonly number[];
  readonly padTokenId: number | null;
}

const size = z.int().positive();
const tokenId = z.int().min(0);

const HuggingFaceConfig = z.looseObject({
  model_type: z.string(),
  vocab_size: size,
  hidden_size: size,
  num_hidden_layers: size,
  num_attention_heads: size,
  num_key_value_heads: size.optional(),
  head_dim: size.optional(),
  intermediate_size: size,
  rms_norm_eps: z.number().positive().default(1e-6),
  rope_theta: z.number().positive().optional(),
  rope_parameters: z.looseObject({ rope_theta: z.number().positive(), rope_type: z.string().optional() }).optional(),
  rope_scaling: z.unknown().optional(),
  tie_word_embeddings: z.boolean().default(false),
  max_position_embeddings: size,
  eos_token_id: z.union([tokenId, z.array(tokenId)]).nullish(),
  pad_token_id: tokenId.nullish(),
  hidden_act: z.string().default('silu'),
  attention_bias: z.boolean().default(false),
  use_sliding_window: z.boolean().default(false),
});
type HuggingFaceConfig = z.infer<typeof HuggingFaceConfig>;

const defaultRopeTheta = 10_000;

/** Reads the text of a config.json. What the engine cannot compute is refused here, before any weight is read. */
export function parseModelConfig(text: string, where: string): ModelConfig {
  const raw = parseJson(text, where);
  requireModelType(raw, where);
  const parsed = HuggingFaceConfig.safeParse(raw);
  if (!parsed.success) throw unsupported(where, `a Qwen3 config.json`, z.prettifyError(parsed.error));
  const config = fromHuggingFace(parsed.data);
  requireSupported(parsed.data, config, where);
  return config;
}

/** Refuses a model whose weights, in `copies` of 4-byte floats, would not leave the machine room to work. */
export function requireMemory(parameterCount: number, copies: number, purpose: string): void {
  const needed = parameterCount * 4 * copies;
  const available = totalmem() * memoryShareMax;
  if (needed <= available) return;
  const gib = (bytes: number): string => `${(bytes / 2 ** 30).toFixed(1)} GiB`;
  throw new RatchetError(
    'ModelUnsupported',
    `The model has ${parameterCount} parameters; ${purpose} needs ${gib(needed)} (${copies} copies in 32-bit floats), and ` +
      `the engine takes at most ${gib(available)} of this machine's memory. Use a smaller model or a larger machine.`,
  );
}

function parseJson(text: string, where: string): unknown {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new RatchetError('ModelUnsupported', `${where} is not JSON. Expected a Hugging Face config.json.`, { cause });
  }
}

function requireModelType(raw: unknown, where: string): void {
  const type = typeof raw === 'object' && raw !== null && 'model_type' in raw ? raw.model_type : undefined;
  if (type !== 'qwen3') throw unsupported(where, `model_type "qwen3"`, JSON.stringify(type) ?? 'no model_type');
}

function fromHuggingFace(raw: HuggingFaceConfig): ModelConfig {
  const end = raw.eos_token_id ?? [];
  return {
    vocabularySize: raw.vocab_size,
    hiddenSize: raw.hidden_size,
    layerCount: raw.num_hidden_layers,
    headCount: raw.num_attention_heads,
    keyValueHeadCount: raw.num_key_value_heads ?? raw.num_attention_heads,
    headSize: raw.head_dim ?? Math.floor(raw.hidden_size / raw.num_attention_heads),
    feedForwardSize: raw.intermediate_size,
    normEpsilon: raw.rms_norm_eps,
    ropeTheta: raw.rope_parameters?.rope_theta ?? raw.rope_theta ?? defaultRopeTheta,
    tiedEmbeddings: raw.tie_word_embeddings,
    positionsMax: Math.min(raw.max_position_embeddings, contextPositionsMax),
    endTokenIds: typeof end === 'number' ? [end] : end,
    padTokenId: raw.pad_token_id ?? null,
  };
}

function requireSupported(raw: HuggingFaceConfig, config: ModelConfig, where: string): void {
  const require = (holds: boolean, expected: string, received: string): void => {
    if (!holds) throw unsupported(where, expected, received);
  };
  require(config.headSize % 16 === 0, 'head_dim to be a multiple of 16', `${config.headSize}`);
  require(config.headCount % config.keyValueHeadCount ===
    0, 'num_attention_heads to be a multiple of num_key_value_heads', `${config.headCount} and ${config.keyValueHeadCount}`);
  require(raw.hidden_act === 'silu', 'hidden_act "silu"', `"${raw.hidden_act}"`);
  require(!raw.attention_bias, 'attention_bias false', 'true');
  require(!raw.use_sliding_window, 'use_sliding_window false', 'true');
  require(raw.rope_scaling == null, 'no rope_scaling', JSON.stringify(raw.rope_scaling) ?? '');
  const ropeType = raw.rope_parameters?.rope_type ?? 'default';
  require(ropeType === 'default', 'rope_type "default"', `"${ropeType}"`);
}

function unsupported(where: string, expected: string, received: string): RatchetError {
  return new RatchetError(
    'ModelUnsupported',
    `${where}: expected ${expected}, got ${received}. The embedded engine computes Qwen3-type decoders ` +
      `(Qwen3ForCausalLM); use such a model, or an external inference server and trainer for this one.`,
  );
}
