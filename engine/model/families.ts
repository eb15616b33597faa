import type { HuggingFaceConfig, ModelConfig } from './config.ts';

/** Differences between the families that config.json does not state, as in transformers' classes. */

export const families = ['qwen3', 'qwen2', 'llama', 'mistral', 'smollm3', 'gemma3_text', 'qwen3_moe'] as const;

export interface Family {
  readonly isGemma: boolean;
  readonly activation: ModelConfig['activation'];
  readonly queryKeyNorm: boolean;
  /** Defaults for fields that config.json omits; null = as many as heads, or hidden size / heads. */
  readonly keyValueHeadCount: number | null;
  readonly headSize: number | null;
  readonly ropeTheta: number;
  readonly tiesEmbeddings: boolean;
  /** Layers may attend to a window alone. */
  readonly windows: boolean;
  /** Entries of layer_types. */
  readonly layers: readonly string[];
}

const full = 'full_attention';
const sliding = 'sliding_attention';

const plain: Family = {
  isGemma: false,
  activation: 'silu',
  queryKeyNorm: false,
  keyValueHeadCount: null,
  headSize: null,
  ropeTheta: 10_000,
  tiesEmbeddings: false,
  windows: false,
  layers: [full],
};
const qwen3: Family = { ...plain, queryKeyNorm: true, keyValueHeadCount: 32, headSize: 128 };

const table: Readonly<Record<(typeof families)[number], Family>> = {
  llama: plain,
  qwen2: { ...plain, keyValueHeadCount: 32 },
  qwen3,
  qwen3_moe: { ...qwen3, keyValueHeadCount: 4, headSize: null },
  mistral: { ...plain, keyValueHeadCount: 8, windows: true },
  smollm3: { ...plain, keyValueHeadCount: 4, ropeTheta: 2_000_000, tiesEmbeddings: true },
  gemma3_text: {
    ...plain,
    isGemma: true,
    activation: 'gelu_tanh',
    queryKeyNorm: true,
    keyValueHeadCount: 4,
    headSize: 256,
    ropeTheta: 1_000_000,
    tiesEmbeddings: true,
    windows: true,
    layers: [full, sliding],
  },
};

export function familyOf(name: (typeof families)[number]): Family {
  return table[name];
}

export interface AttentionKind {
  /** Number of visible tokens, the own one included; null = all before it. */
  readonly window: number | null;
  /**
   * `global`: by ropeTheta and ropeScaling; `local`: by localRopeTheta, not scaled; `none`: no rotary embedding (NoPE).
   */
  readonly rotary: 'global' | 'local' | 'none';
}

/** A window that is no shorter than the context counts as none. */
export function attentionPattern(raw: HuggingFaceConfig, positionsMax: number): readonly AttentionKind[] {
  const windowOf = (size: number): number | null => (size < positionsMax ? size : null);
  const everything: AttentionKind = { window: null, rotary: 'global' };
  if (raw.model_type === 'mistral') {
    const size = raw.sliding_window === undefined ? mistralWindow : raw.sliding_window;
    return [{ ...everything, window: size === null ? null : windowOf(size) }];
  }
  if (raw.model_type === 'smollm3') {
    const interval = raw.no_rope_layer_interval ?? 4;
    const has = raw.no_rope_layers ?? repeated(interval, (i) => Number(i + 1 < interval));
    return has.map((rotates) => (rotates === 1 ? everything : { ...everything, rotary: 'none' }));
  }
  if (raw.model_type === 'gemma3_text') {
    const local: AttentionKind = { window: windowOf(raw.sliding_window ?? 4096), rotary: 'local' };
    const every = raw.sliding_window_pattern ?? 6;
    const types = raw.layer_types ?? repeated(every, (i) => (i + 1 < every ? sliding : full));
    return types.map((type) => (type === sliding ? local : everything));
  }
  return [everything];
}

const mistralWindow = 4096;

/** A config.json may claim any number: an interval beyond all layers is a pattern without its end. */
function repeated<Entry>(interval: number, entry: (i: number) => Entry): Entry[] {
  return Array.from({ length: Math.min(interval, intervalMax) }, (_, i) => entry(i));
}
const intervalMax = 4096;

/** A mixture: each token passes through a few experts (Qwen3-MoE). */
export interface Experts {
  readonly count: number;
  readonly perToken: number;
  readonly feedForwardSize: number;
  /** The weights of a token's experts add up to 1. */
  readonly areNormalized: boolean;
}

export function expertsOf(raw: HuggingFaceConfig): Experts | null {
  if (raw.model_type !== 'qwen3_moe') return null;
  return {
    count: raw.num_experts ?? raw.num_local_experts ?? 128,
    perToken: raw.num_experts_per_tok ?? 8,
    feedForwardSize: raw.moe_intermediate_size ?? 768,
    areNormalized: raw.norm_topk_prob,
  };
}

export function attentionOf({ attention }: Pick<ModelConfig, 'attention'>, layer: number): AttentionKind {
  return attention[layer % attention.length]!;
}
