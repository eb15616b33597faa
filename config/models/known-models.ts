import type { ModelShape } from '../../core/model-shape.ts';

/**
 * Shapes of well-known models by their id on the Hub, from their config.json there, so that their memory can be
 * estimated before anything is fetched.
 */

/** layers, hidden, heads, heads of keys and values, head size, feed-forward, vocabulary */
type Sizes = readonly [number, number, number, number, number, number, number];

const decoder = (sizes: Sizes, more: Partial<ModelShape>): ModelShape => {
  const [layerCount, hiddenSize, headCount, keyValueHeadCount, headSize, feedForwardSize, vocabularySize] = sizes;
  return {
    layerCount,
    hiddenSize,
    headCount,
    keyValueHeadCount,
    headSize,
    feedForwardSize,
    vocabularySize,
    tiedEmbeddings: false,
    queryKeyValueBias: false,
    queryKeyNorm: false,
    experts: null,
    ...more,
  };
};
const qwen2 = (sizes: Sizes, tiedEmbeddings = false) => decoder(sizes, { queryKeyValueBias: true, tiedEmbeddings });
const qwen3 = (sizes: Sizes, tiedEmbeddings = false) => decoder(sizes, { queryKeyNorm: true, tiedEmbeddings });
const llama = (sizes: Sizes, tiedEmbeddings = false) => decoder(sizes, { tiedEmbeddings });
const mixture = (sizes: Sizes, feedForwardSize: number) =>
  decoder(sizes, {
    queryKeyNorm: true,
    experts: { count: 128, perToken: 8, shared: 0, feedForwardSize, denseLayers: 0 },
  });

/** GLM 4.5 Air, on which INTELLECT-3 is trained. */
const glmAir = decoder([46, 4096, 96, 8, 128, 10_944, 151_552], {
  queryKeyValueBias: true,
  experts: { count: 128, perToken: 8, shared: 1, feedForwardSize: 1408, denseLayers: 1 },
});

const shapes: Readonly<Record<string, ModelShape>> = {
  'qwen2.5-0.5b': qwen2([24, 896, 14, 2, 64, 4864, 151_936], true),
  'qwen2.5-1.5b': qwen2([28, 1536, 12, 2, 128, 8960, 151_936], true),
  'qwen2.5-3b': qwen2([36, 2048, 16, 2, 128, 11_008, 151_936], true),
  'qwen2.5-7b': qwen2([28, 3584, 28, 4, 128, 18_944, 152_064]),
  'qwen2.5-14b': qwen2([48, 5120, 40, 8, 128, 13_824, 152_064]),
  'qwen2.5-32b': qwen2([64, 5120, 40, 8, 128, 27_648, 152_064]),
  'qwen2.5-72b': qwen2([80, 8192, 64, 8, 128, 29_568, 152_064]),
  'qwen3-0.6b': qwen3([28, 1024, 16, 8, 128, 3072, 151_936], true),
  'qwen3-1.7b': qwen3([28, 2048, 16, 8, 128, 6144, 151_936], true),
  'qwen3-4b': qwen3([36, 2560, 32, 8, 128, 9728, 151_936], true),
  'qwen3-8b': qwen3([36, 4096, 32, 8, 128, 12_288, 151_936]),
  'qwen3-14b': qwen3([40, 5120, 40, 8, 128, 17_408, 151_936]),
  'qwen3-32b': qwen3([64, 5120, 64, 8, 128, 25_600, 151_936]),
  'qwen3-30b-a3b': mixture([48, 2048, 32, 4, 128, 6144, 151_936], 768),
  'qwen3-235b-a22b': mixture([94, 4096, 64, 4, 128, 12_288, 151_936], 1536),
  'glm-4.5-air': glmAir,
  'intellect-3': glmAir,
  'llama-3.1-8b': llama([32, 4096, 32, 8, 128, 14_336, 128_256]),
  'llama-3.2-1b': llama([16, 2048, 32, 8, 64, 8192, 128_256], true),
  'llama-3.2-3b': llama([28, 3072, 24, 8, 128, 8192, 128_256], true),
};

/** Endings of a name that keep the model's shape. Quantized models are left out. */
const variant = /-(?:base|instruct|thinking|math|coder|2507|[ar]\d*-?zero|sft|hf)$/;

/** The shape of a model by its id on the Hub, under any owner; undefined if the table lacks it. */
export function knownModel(id: string): { readonly name: string; readonly shape: ModelShape } | undefined {
  let name = (id.split('/').at(-1) ?? '').toLowerCase().replace(/^meta-/, '');
  while (variant.test(name)) name = name.replace(variant, '');
  // Hosted Training's page names its mixtures without their active size.
  const meant = { 'qwen3-30b': 'qwen3-30b-a3b', 'qwen3-235b': 'qwen3-235b-a22b' }[name] ?? name;
  const shape = Object.hasOwn(shapes, meant) ? shapes[meant] : undefined;
  return shape && { name: meant, shape };
}

/** The models of Hosted Training, as its documents name them. */
const hostedModels: readonly string[] = [
  'Qwen/Qwen3-4B-Instruct-2507',
  'Qwen/Qwen3-4B-Thinking-2507',
  'Qwen/Qwen3-30B-Instruct-2507',
  'Qwen/Qwen3-30B-Thinking-2507',
  'Qwen/Qwen3-235B-Instruct-2507',
  'Qwen/Qwen3-235B-Thinking-2507',
  'PrimeIntellect/INTELLECT-3',
];

/** Whether Hosted Training offers the model; on the Hub names of mixtures also have their active size. */
export function isHostedModel(id: string): boolean {
  return hostedModels.includes(id.replace(/-A\d+B(?=-)/, ''));
}
