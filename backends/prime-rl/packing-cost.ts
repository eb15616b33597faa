import type { PackingOptions } from './packing.ts';

/**
 * Estimates the cost of a row of n tokens from a model’s config.json: linear · n + quadratic · n² operations of a forward pass. prime-rl counts
 * them so, to give all ranks equal work (trainer/batch.py). The estimate decides which rank gets which micro-batch, and nothing of what is
 * trained.
 */
export function packingCost(config: Readonly<Record<string, unknown>>): NonNullable<PackingOptions['cost']> {
  const text = config['text_config'];
  const own = (typeof text === 'object' && text !== null ? text : config) as Readonly<Record<string, unknown>>;
  /** The value of the first of these settings that is a number. */
  const first = (...names: readonly string[]): number | undefined =>
    names.map((name) => own[name]).find((value) => typeof value === 'number');
  const [hidden, heads, layers] = [first('hidden_size'), first('num_attention_heads'), first('num_hidden_layers')];
  // A config that says it in other words: tokens alone count.
  if (hidden === undefined || heads === undefined || layers === undefined) return { linear: 1, quadratic: 0 };
  const channels = first('kv_channels', 'head_dim') ?? Math.floor(hidden / heads);
  const isLatent = own['multi_latent_attention'] === true || 'q_lora_rank' in own;
  const [qk, position] = [first('qk_head_dim') ?? 0, first('qk_pos_emb_head_dim') ?? 0];
  const value = first('v_head_dim') ?? channels;
  const queryRank = isLatent ? first('q_lora_rank') : undefined;
  const keyRank = isLatent ? first('kv_lora_rank') : undefined;
  const queries =
    queryRank === undefined
      ? 2 * hidden * heads * (isLatent ? qk + position : channels)
      : 2 * queryRank * (hidden + heads * (qk + position));
  const keys =
    keyRank === undefined
      ? 4 * hidden * channels * (first('num_query_groups', 'num_key_value_heads') ?? heads)
      : 2 * (keyRank * (hidden + heads * (qk + value)) + hidden * position);
  const { dense, experts } = layersOf(own, layers);
  const denseWidth = first('ffn_hidden_size', 'intermediate_size', 'moe_intermediate_size') ?? 0;
  const expertWidth =
    (first('moe_ffn_hidden_size', 'moe_intermediate_size') ?? denseWidth) *
      (first('moe_router_topk', 'num_experts_per_tok') ?? 1) +
    (first('moe_shared_expert_intermediate_size') ?? 0);
  const layer = (width: number): number => queries + keys + 2 * hidden * hidden + 6 * hidden * width;
  const attention = isLatent ? heads * (qk + position) + heads * value : 2 * heads * channels;
  return {
    linear: dense * layer(denseWidth) + experts * layer(expertWidth) + 2 * hidden * (first('vocab_size') ?? 0),
    quadratic: (dense + experts) * attention,
  };
}

/** Counts layers with one feed-forward network, and layers with experts. */
function layersOf(config: Readonly<Record<string, unknown>>, layers: number): { dense: number; experts: number } {
  const { num_experts: some, n_routed_experts: routed, moe_layer_freq: every, first_k_dense_replace: leading } = config;
  if (typeof (some ?? routed) !== 'number') return { dense: layers, experts: 0 };
  const counted = (isDense: (layer: number) => boolean, of: number): { dense: number; experts: number } => {
    const dense = Array.from({ length: of }, (_, i) => i).filter(isDense).length;
    return { dense, experts: of - dense };
  };
  if (Array.isArray(every)) return counted((i) => every[i] === 0, every.length);
  if (typeof every === 'number') return counted((i) => i % every !== 0, layers);
  return typeof leading === 'number' ? { dense: leading, experts: layers - leading } : { dense: 0, experts: layers };
}
