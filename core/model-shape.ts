import { z } from 'zod';

/** The shape of a decoder, as far as its size and its memory depend on it. Sizes are in elements. */
export interface ModelShape {
  readonly hiddenSize: number;
  readonly layerCount: number;
  readonly headCount: number;
  /** Heads of keys and values. */
  readonly keyValueHeadCount: number;
  readonly headSize: number;
  /** Size in layers without experts. */
  readonly feedForwardSize: number;
  readonly vocabularySize: number;
  /** The output layer is the embedding table. */
  readonly tiedEmbeddings: boolean;
  /** q_proj, k_proj and v_proj have a bias. */
  readonly queryKeyValueBias: boolean;
  /** RMSNorm of every head of query and key. */
  readonly queryKeyNorm: boolean;
  readonly experts: Experts | null;
}

/** Sizes of a mixture of experts. */
interface Experts {
  readonly count: number;
  /** Experts that a token goes through, without the shared ones. */
  readonly perToken: number;
  readonly shared: number;
  readonly feedForwardSize: number;
  /** Layers at the beginning that have none. */
  readonly denseLayers: number;
}

/** Linear layers that LoRA may adapt, with their widths. */
interface Linear {
  readonly name: string;
  readonly inputs: number;
  readonly outputs: number;
  /** Number per layer; one for each expert. */
  readonly count: number;
}

/** Adapters, as far as their size depends on it. */
export interface LoraShape {
  readonly r: number;
  readonly targetModules: readonly string[];
}

export function parameterCountOf(shape: ModelShape): number {
  return outerParameterCount(shape) + sum(layerParameterCounts(shape));
}

/** Parameters outside of the layers: embedding table, output layer and the last norm. */
export function outerParameterCount({ hiddenSize, vocabularySize, tiedEmbeddings }: ModelShape): number {
  return (tiedEmbeddings ? 1 : 2) * vocabularySize * hiddenSize + hiddenSize;
}

export function layerParameterCounts(shape: ModelShape): number[] {
  return Array.from({ length: shape.layerCount }, (_, layer) => layerParameterCount(shape, layer));
}

/** Parameters of one layer, including norms and biases. */
function layerParameterCount(shape: ModelShape, layer: number): number {
  const { hiddenSize, headSize, headCount, keyValueHeadCount, experts } = shape;
  const matrices = sum(linearLayers(shape, layer).map(({ inputs, outputs, count }) => inputs * outputs * count));
  const router = experts && layer >= experts.denseLayers ? hiddenSize * experts.count : 0;
  const biases = shape.queryKeyValueBias ? (headCount + 2 * keyValueHeadCount) * headSize : 0;
  return matrices + router + biases + 2 * hiddenSize + (shape.queryKeyNorm ? 2 * headSize : 0);
}

/** A and B of every adapted layer: r (inputs + outputs). */
export function loraParameterCount(shape: ModelShape, { r, targetModules }: LoraShape): number {
  const layers = Array.from({ length: shape.layerCount }, (_, layer) => linearLayers(shape, layer)).flat();
  const adapted = layers.filter(({ name }) => targetModules.some((target) => name === target || target.endsWith(name)));
  return sum(adapted.map(({ inputs, outputs, count }) => r * (inputs + outputs) * count));
}

/** Keys and values of one token in all layers. */
export function keyValueBytes({ layerCount, keyValueHeadCount, headSize }: ModelShape, elementBytes: number): number {
  return 2 * layerCount * keyValueHeadCount * headSize * elementBytes;
}

function linearLayers(shape: ModelShape, layer: number): Linear[] {
  const { hiddenSize, headSize, experts } = shape;
  const queryWidth = shape.headCount * headSize;
  const keyWidth = shape.keyValueHeadCount * headSize;
  const isMixture = experts !== null && layer >= experts.denseLayers;
  const width = isMixture ? experts.feedForwardSize : shape.feedForwardSize;
  const count = isMixture ? experts.count + experts.shared : 1;
  return [
    { name: 'q_proj', inputs: hiddenSize, outputs: queryWidth, count: 1 },
    { name: 'k_proj', inputs: hiddenSize, outputs: keyWidth, count: 1 },
    { name: 'v_proj', inputs: hiddenSize, outputs: keyWidth, count: 1 },
    { name: 'o_proj', inputs: queryWidth, outputs: hiddenSize, count: 1 },
    { name: 'gate_proj', inputs: hiddenSize, outputs: width, count },
    { name: 'up_proj', inputs: hiddenSize, outputs: width, count },
    { name: 'down_proj', inputs: width, outputs: hiddenSize, count },
  ];
}

const size = z.int().positive();

/** The fields of config.json that matter here; the loader of the model checks the rest. */
const HuggingFaceConfig = z.looseObject({
  model_type: z.string().default(''),
  vocab_size: size,
  hidden_size: size,
  num_hidden_layers: size,
  num_attention_heads: size,
  num_key_value_heads: size.nullish(),
  head_dim: size.nullish(),
  intermediate_size: size,
  tie_word_embeddings: z.boolean().default(false),
  attention_bias: z.boolean().default(false),
  num_experts: z.int().nullish(),
  num_local_experts: z.int().nullish(),
  n_routed_experts: z.int().nullish(),
  num_experts_per_tok: z.int().nullish(),
  n_shared_experts: z.int().nullish(),
  moe_intermediate_size: size.nullish(),
  first_k_dense_replace: z.int().nullish(),
});

/** The shape from a config.json; a text describes what is missing. */
export function shapeOfConfig(raw: unknown): ModelShape | string {
  const parsed = HuggingFaceConfig.safeParse(raw);
  if (!parsed.success) {
    return parsed.error.issues
      .map(({ path, message }) => `${z.core.toDotPath(path) || 'the file'}: ${message}`)
      .join('; ');
  }
  const config = parsed.data;
  const expertCount = config.num_experts ?? config.n_routed_experts ?? config.num_local_experts ?? 0;
  return {
    hiddenSize: config.hidden_size,
    layerCount: config.num_hidden_layers,
    headCount: config.num_attention_heads,
    keyValueHeadCount: config.num_key_value_heads ?? config.num_attention_heads,
    headSize: config.head_dim ?? Math.floor(config.hidden_size / config.num_attention_heads),
    feedForwardSize: config.intermediate_size,
    vocabularySize: config.vocab_size,
    tiedEmbeddings: config.tie_word_embeddings,
    queryKeyValueBias: config.attention_bias || config.model_type.startsWith('qwen2'),
    queryKeyNorm: /^(qwen3|gemma3)/.test(config.model_type),
    experts:
      expertCount === 0
        ? null
        : {
            count: expertCount,
            perToken: config.num_experts_per_tok ?? 1,
            shared: config.n_shared_experts ?? 0,
            feedForwardSize: config.moe_intermediate_size ?? config.intermediate_size,
            denseLayers: config.first_k_dense_replace ?? 0,
          },
  };
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
