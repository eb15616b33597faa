import { RatchetError } from '../../core/errors.ts';
import type { ModelConfig, ModelFamily } from '../model/config.ts';
import { type AttentionKind, attentionOf } from '../model/families.ts';

/** Families of models, with their tensor names in a GGUF file and in a Hugging Face folder. */
export interface GgufArchitecture {
  /** `general.architecture` */
  readonly name: string;
  /** config.json's model_type, and the class of transformers that it is for. */
  readonly modelType: ModelFamily;
  readonly className: string;
  /** Rows of queries and keys are in llama.cpp's order. */
  readonly permutes: boolean;
}

export const architectures: readonly GgufArchitecture[] = [
  { name: 'llama', modelType: 'llama', className: 'LlamaForCausalLM', permutes: true },
  { name: 'qwen2', modelType: 'qwen2', className: 'Qwen2ForCausalLM', permutes: false },
  { name: 'qwen3', modelType: 'qwen3', className: 'Qwen3ForCausalLM', permutes: false },
  { name: 'smollm3', modelType: 'smollm3', className: 'SmolLM3ForCausalLM', permutes: true },
  { name: 'gemma3', modelType: 'gemma3_text', className: 'Gemma3ForCausalLM', permutes: false },
  { name: 'qwen3moe', modelType: 'qwen3_moe', className: 'Qwen3MoeForCausalLM', permutes: false },
];

/** Every fourth layer of SmolLM3 has no rotary embedding; llama.cpp supports no other interval. */
const smollm3NoPositions = 4;
/** Default interval of Gemma 3's layers with full attention. */
export const gemmaFullEvery = 6;

/**
 * Gemma 3's query_pre_attn_scalar in llama.cpp, which recognizes the 27B model by its layer count (`load_arch_hparams`
 * of src/models/gemma3.cpp).
 */
export function gemmaQueryScalar({
  layerCount,
  hiddenSize,
  headCount,
  headSize,
}: Pick<ModelConfig, 'layerCount' | 'hiddenSize' | 'headCount' | 'headSize'>): number {
  return layerCount === 62 ? Math.floor(hiddenSize / headCount) : headSize;
}

/**
 * The architecture of a loaded model. Mistral is written as Llama: llama.cpp has no window for it, so the file's
 * context ends where the window does. Throws `ModelUnsupported` for a model that llama.cpp would compute differently.
 */
export function architectureOf(config: ModelConfig): GgufArchitecture {
  const family = config.family === 'mistral' ? 'llama' : config.family;
  const known = architectures.find(({ modelType }) => modelType === family);
  const families = [...architectures.map(({ modelType }) => modelType), 'mistral'].join(', ');
  if (!known) throw unsupported(`a model of the families ${families}`, `"${config.family}"`);
  const layers = Array.from({ length: Math.min(config.layerCount, layersLooked) }, (_, i) => attentionOf(config, i));
  const [has, expected] = layersThere(config);
  if (!layers.every(has)) throw unsupported(expected, `"${config.family}" with other layers`);
  if (config.experts?.areNormalized === false)
    throw unsupported('norm_topk_prob true, as llama.cpp computes it', 'false');
  const scalar = gemmaQueryScalar(config);
  if (family === 'gemma3_text' && Math.abs(config.attentionScale * Math.sqrt(scalar) - 1) > 1e-6)
    throw unsupported(`query_pre_attn_scalar ${scalar}, as llama.cpp computes it`, String(config.attentionScale ** -2));
  return known;
}
const layersLooked = 1024;

type HasLayer = (layer: AttentionKind, at: number) => boolean;

/** The layers that llama.cpp computes for a family. */
function layersThere({ family }: ModelConfig): readonly [has: HasLayer, expected: string] {
  const rotary: HasLayer = (layer) => layer.rotary === 'global';
  if (family === 'gemma3_text')
    return [
      ({ window, rotary: of }) => window === null || of === 'local',
      'windows with rotary embeddings of their own',
    ];
  if (family === 'mistral') return [rotary, 'layers that are told positions'];
  if (family !== 'smollm3')
    return [(layer, i) => layer.window === null && rotary(layer, i), 'layers that attend to everything'];
  const expected = `positions told to all layers but every ${smollm3NoPositions}th`;
  return [
    (layer, i) => layer.window === null && layer.rotary === ((i + 1) % smollm3NoPositions === 0 ? 'none' : 'global'),
    expected,
  ];
}

function unsupported(expected: string, received: string): RatchetError {
  return new RatchetError('ModelUnsupported', `expected ${expected}, for a GGUF file, got ${received}.`);
}

/** The position of a folder's tensor in the GGUF file, and how its values differ there. */
export interface GgufPlace {
  readonly name: string;
  /** Heads whose rows are permuted; null = the rows keep their order. */
  readonly heads: number | null;
  /** 1 is added to them: norms of Gemma, which multiply by 1 + weight. */
  readonly addsOne: boolean;
  /** Index within the file's stacked tensor of all experts; null = the tensor is not stacked. */
  readonly expert: number | null;
}

export function ggufPlaceOf(config: ModelConfig, name: string): GgufPlace {
  const addsOne = config.normsAddOne && name.endsWith('norm.weight');
  const found = outer[name];
  if (found !== undefined) return { name: found, heads: null, addsOne, expert: null };
  const [, layer, expert, part, kind] =
    /^model\.layers\.(\d+)\.(?:mlp\.experts\.(\d+)\.)?(.+)\.(weight|bias)$/.exec(name) ?? [];
  const own = part === undefined ? undefined : namesOf(config, expert)[part];
  if (own === undefined) throw unsupported('a tensor that GGUF has a name for', `"${name}"`);
  return {
    name: `blk.${layer}.${own}.${kind}`,
    heads: architectureOf(config).permutes ? headsOf(part, config) : null,
    addsOne,
    expert: expert === undefined ? null : Number(expert),
  };
}

function namesOf(config: ModelConfig, expert: string | undefined): Readonly<Record<string, string>> {
  if (expert !== undefined) return ofExperts;
  return config.sandwichNorms ? { ...inner, ...sandwich } : inner;
}

function headsOf(part: string | undefined, { headCount, keyValueHeadCount }: ModelConfig): number | null {
  if (part === 'self_attn.q_proj') return headCount;
  return part === 'self_attn.k_proj' ? keyValueHeadCount : null;
}

const outer: Readonly<Record<string, string>> = {
  'model.embed_tokens.weight': 'token_embd.weight',
  'model.norm.weight': 'output_norm.weight',
  'lm_head.weight': 'output.weight',
};
const inner: Readonly<Record<string, string>> = {
  input_layernorm: 'attn_norm',
  post_attention_layernorm: 'ffn_norm',
  'self_attn.q_proj': 'attn_q',
  'self_attn.k_proj': 'attn_k',
  'self_attn.v_proj': 'attn_v',
  'self_attn.o_proj': 'attn_output',
  'self_attn.q_norm': 'attn_q_norm',
  'self_attn.k_norm': 'attn_k_norm',
  'mlp.gate_proj': 'ffn_gate',
  'mlp.up_proj': 'ffn_up',
  'mlp.down_proj': 'ffn_down',
  'mlp.gate': 'ffn_gate_inp',
};
/** The norm after attention has the name that other families have for the one before the feed-forward network. */
const sandwich: Readonly<Record<string, string>> = {
  post_attention_layernorm: 'post_attention_norm',
  pre_feedforward_layernorm: 'ffn_norm',
  post_feedforward_layernorm: 'post_ffw_norm',
};
/** All experts of a layer are one tensor. */
const ofExperts: Readonly<Record<string, string>> = {
  gate_proj: 'ffn_gate_exps',
  up_proj: 'ffn_up_exps',
  down_proj: 'ffn_down_exps',
};

/**
 * llama.cpp rotates neighbours, transformers the two halves of a head: rows are (pair, half) there and (half, pair)
 * here. `to` is the target order (`permute` of convert_hf_to_gguf.py, and its inverse).
 */
export function reorderRows(
  values: Float32Array,
  { heads, shape, to }: { readonly heads: number; readonly shape: readonly number[]; readonly to: 'pairs' | 'halves' },
): void {
  const [rows, width] = [shape[0]!, shape[1] ?? 1];
  const pairs = rows / heads / 2;
  const from = values.slice();
  for (let head = 0; head < heads; head++) {
    for (let half = 0; half < 2; half++) {
      for (let pair = 0; pair < pairs; pair++) {
        const first = head * 2 * pairs;
        const [inHalves, inPairs] = [first + half * pairs + pair, first + 2 * pair + half];
        const [target, source] = to === 'halves' ? [inHalves, inPairs] : [inPairs, inHalves];
        values.set(from.subarray(source * width, (source + 1) * width), target * width);
      }
    }
  }
}
