import type { ModelConfig } from './config.ts';

export interface ParameterSpec {
  /** Hugging Face's tensor name. */
  readonly name: string;
  readonly shape: readonly number[];
  /** Position in the flat array, in elements. */
  readonly offset: number;
  readonly length: number;
}

/** Every tensor of a model in a fixed order, which is also the order in the flat array. Linear layers are [out, in]. */
export function parameterLayout(config: ModelConfig): readonly ParameterSpec[] {
  return placed(shapes(config));
}

/** Tensors one after the other in a flat array. */
export function placed(tensors: readonly (readonly [name: string, shape: readonly number[]])[]): ParameterSpec[] {
  let offset = 0;
  return tensors.map(([name, shape]) => {
    const length = shape.reduce((product, size) => product * size, 1);
    const spec = { name, shape, offset, length };
    offset += length;
    return spec;
  });
}

/** From two small layouts: a config.json may claim any number of layers. */
export function parameterCount(config: ModelConfig): number {
  const one = elementCount(parameterLayout({ ...config, layerCount: 1 }));
  const two = elementCount(parameterLayout({ ...config, layerCount: 2 }));
  return one + (config.layerCount - 1) * (two - one);
}

export function elementCount(layout: readonly ParameterSpec[]): number {
  const last = layout.at(-1);
  return last ? last.offset + last.length : 0;
}

export const embeddingsName = 'model.embed_tokens.weight';

export const layerPrefix = (layer: number): string => `model.layers.${layer}.`;

/** The name of the matrix that turns the last hidden state into logits. */
export function outputLayerName(config: Pick<ModelConfig, 'tiedEmbeddings'>): string {
  return config.tiedEmbeddings ? embeddingsName : 'lm_head.weight';
}

function shapes(config: ModelConfig): [string, number[]][] {
  const { vocabularySize, hiddenSize, layerCount } = config;
  const layers = Array.from({ length: layerCount }, (_, layer) => layerShapes(config, layerPrefix(layer)));
  return [
    [embeddingsName, [vocabularySize, hiddenSize]],
    ...layers.flat(),
    ['model.norm.weight', [hiddenSize]],
    ...(config.tiedEmbeddings ? [] : [['lm_head.weight', [vocabularySize, hiddenSize]] satisfies [string, number[]]]),
  ];
}

function layerShapes(config: ModelConfig, prefix: string): [string, number[]][] {
  const { hiddenSize, headSize } = config;
  const queryWidth = config.headCount * headSize;
  const keyWidth = config.keyValueHeadCount * headSize;
  const linear = (name: string, outputs: number, inputs: number, hasBias: boolean): [string, number[]][] => [
    [`${prefix}${name}.weight`, [outputs, inputs]],
    ...(hasBias ? [[`${prefix}${name}.bias`, [outputs]] satisfies [string, number[]]] : []),
  ];
  const headNorm = (name: string): [string, number[]][] =>
    config.queryKeyNorm ? [[`${prefix}self_attn.${name}.weight`, [headSize]]] : [];
  const norm = (name: string): [string, number[]] => [`${prefix}${name}.weight`, [hiddenSize]];
  return [
    norm('input_layernorm'),
    ...linear('self_attn.q_proj', queryWidth, hiddenSize, config.queryKeyValueBias),
    ...linear('self_attn.k_proj', keyWidth, hiddenSize, config.queryKeyValueBias),
    ...linear('self_attn.v_proj', keyWidth, hiddenSize, config.queryKeyValueBias),
    ...headNorm('q_norm'),
    ...headNorm('k_norm'),
    ...linear('self_attn.o_proj', hiddenSize, queryWidth, config.attentionOutputBias),
    norm('post_attention_layernorm'),
    ...(config.sandwichNorms ? [norm('pre_feedforward_layernorm'), norm('post_feedforward_layernorm')] : []),
    ...feedForwardParts(config).flatMap(({ name, width }) => [
      ...linear(`${name}gate_proj`, width, hiddenSize, config.feedForwardBias),
      ...linear(`${name}up_proj`, width, hiddenSize, config.feedForwardBias),
      ...linear(`${name}down_proj`, hiddenSize, width, config.feedForwardBias),
    ]),
    ...(config.experts ? linear('mlp.gate', config.experts.count, hiddenSize, false) : []),
  ];
}

/** The feed-forward networks of a layer: one, or one of each expert. */
function feedForwardParts({
  experts,
  feedForwardSize,
}: ModelConfig): { readonly name: string; readonly width: number }[] {
  if (experts === null) return [{ name: 'mlp.', width: feedForwardSize }];
  return Array.from({ length: experts.count }, (_, i) => ({ name: expertPrefix(i), width: experts.feedForwardSize }));
}

/** Name of an expert's weights, after the name of its layer. */
export const expertPrefix = (expert: number): string => `mlp.experts.${expert}.`;
