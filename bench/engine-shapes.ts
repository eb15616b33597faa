import { randomStream } from '../core/random.ts';
import { createPreset, saveModelFolder, parseModelConfig, Parameters } from '../engine/index.ts';

/** A decoder to time: Hugging Face's names, Qwen3, tied embeddings. */
export interface ModelShape {
  readonly vocab_size: number;
  readonly hidden_size: number;
  readonly num_hidden_layers: number;
  readonly num_attention_heads: number;
  readonly num_key_value_heads: number;
  readonly head_dim: number;
  readonly intermediate_size: number;
}

/** 0.2, 0.8 and 8.7 million parameters. */
export const modelShapes = {
  tiny: shape(20, 96, 2, [6, 3, 16], 256),
  small: shape(64, 128, 4, [8, 4, 16], 384),
  m10: shape(4096, 320, 6, [10, 5, 32], 960),
} as const satisfies Record<string, ModelShape>;

function shape(
  vocabulary: number,
  hidden: number,
  layers: number,
  [heads, keyValueHeads, headSize]: readonly [number, number, number],
  feedForward: number,
): ModelShape {
  return {
    vocab_size: vocabulary,
    hidden_size: hidden,
    num_hidden_layers: layers,
    num_attention_heads: heads,
    num_key_value_heads: keyValueHeads,
    head_dim: headSize,
    intermediate_size: feedForward,
  };
}

const deviation = 0.02;

/** A model folder with random weights that both sides of a comparison load. Its tokenizer fits no text and is not used. */
export async function writeRandomModel(folder: string, shape: ModelShape, seed = 0): Promise<void> {
  const { files: presetFiles } = createPreset('preset:reverse-text-0.2m', { seed });
  const rest = { rope_theta: 10_000, rope_parameters: { rope_type: 'default', rope_theta: 10_000 } };
  const config = { ...JSON.parse(presetFiles['config.json']!), ...shape, ...rest, max_position_embeddings: 2048 };
  const files = { ...presetFiles, 'config.json': JSON.stringify(config) };
  const parameters = new Parameters(parseModelConfig(files['config.json'], 'the model to time'));
  for (const { name, shape } of parameters.layout) {
    const view = parameters.view(name);
    if (shape.length === 1) view.fill(1);
    else fillNormal(view, randomStream('bench weights', seed, name));
  }
  await saveModelFolder({ files, parameters }, folder);
}

/** Box–Muller. */
function fillNormal(view: Float32Array, random: () => number): void {
  for (let i = 0; i < view.length; i++) {
    view[i] = deviation * Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
  }
}
