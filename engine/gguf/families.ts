import { RatchetError } from '../../core/errors.ts';
import type { ModelConfig, ModelFamily } from '../model/config.ts';
import { attentionOf } from '../model/families.ts';

/** Families of models and what their tensors are called, in a GGUF file and in a Hugging Face folder. */
export interface GgufArchitecture {
  /** `general.architecture` */
  readonly name: string;
  /** config.json's model_type, and the class of transformers that it is for. */
  readonly modelType: ModelFamily;
  readonly className: string;
  /** Rows of queries and keys lie in llama.cpp's order. */
  readonly permutes: boolean;
}

export const architectures: readonly GgufArchitecture[] = [
  { name: 'llama', modelType: 'llama', className: 'LlamaForCausalLM', permutes: true },
  { name: 'qwen2', modelType: 'qwen2', className: 'Qwen2ForCausalLM', permutes: false },
  { name: 'qwen3', modelType: 'qwen3', className: 'Qwen3ForCausalLM', permutes: false },
  { name: 'smollm3', modelType: 'smollm3', className: 'SmolLM3ForCausalLM', permutes: true },
];

/** llama.cpp knows no SmolLM3 with others. */
const smollm3NoPositions = 4;

/** Of a model that the engine holds. Mistral without a window is a Llama. */
export function architectureOf(config: Pick<ModelConfig, 'family' | 'attention' | 'layerCount'>): GgufArchitecture {
  const family = config.family === 'mistral' ? 'llama' : config.family;
  const known = architectures.find(({ modelType }) => modelType === family);
  const layers = Array.from({ length: Math.min(config.layerCount, layersLooked) }, (_, i) => attentionOf(config, i));
  const has = (i: number): string => (family === 'smollm3' && (i + 1) % smollm3NoPositions === 0 ? 'none' : 'usual');
  if (known && layers.every(({ window, rotary }, i) => window === null && rotary === has(i))) return known;
  const families = [...architectures.map(({ modelType }) => modelType), 'mistral'].join(', ');
  const expected = `a model of the families ${families}, whose layers attend to everything, which GGUF files are read and written of`;
  throw new RatchetError(
    'ModelUnsupported',
    `expected ${expected}, got "${config.family}"${known ? ' with other layers' : ''}.`,
  );
}
const layersLooked = 1024;

/** What a tensor of a folder is called in the file, and in how many heads its rows lie in another order; null: as they are. */
export function ggufTensorOf(
  config: ModelConfig,
  name: string,
): { readonly name: string; readonly heads: number | null } {
  const found = outer[name];
  if (found !== undefined) return { name: found, heads: null };
  const [, layer, part, kind] = /^model\.layers\.(\d+)\.(.+)\.(weight|bias)$/.exec(name) ?? [];
  const own = part === undefined ? undefined : inner[part];
  if (own === undefined) {
    throw new RatchetError('ModelUnsupported', `expected a tensor that GGUF has a name for, got "${name}".`);
  }
  return { name: `blk.${layer}.${own}.${kind}`, heads: architectureOf(config).permutes ? headsOf(part, config) : null };
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
};

/**
 * llama.cpp turns neighbours, transformers the two halves of a head: rows are (pair, half) there and (half, pair) here. `to` says whose order they
 * get (`permute` of convert_hf_to_gguf.py, and undone).
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
