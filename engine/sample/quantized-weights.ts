import type { ModelConfig } from '../model/config.ts';
import { outputLayerName, parameterLayout, type ParameterSpec } from '../model/parameter-layout.ts';
import type { Parameters } from '../model/parameters.ts';
import { Graph } from '../onnx/graph.ts';
import { quantizedLayout, type QuantizedLayout, quantizeWeight } from '../onnx/quantized.ts';
import { type InferenceSession, Tensor, type Tensors } from '../onnx/runtime.ts';
import { openSession, type SessionOptions } from '../onnx/session.ts';

/** How weights of linear layers are kept for sampling. The policy that samples is then another than the one in training. */
export const quantizations = ['int8'] as const;
export type Quantization = (typeof quantizations)[number];

/** Weights of linear layers; norms, biases and the table of embeddings are read as they are. */
export function quantizedLayers(config: ModelConfig): ReadonlyMap<string, QuantizedLayout> {
  const layers = parameterLayout(config).filter((spec) => isLinear(config, spec));
  return new Map(layers.map(({ name, shape }) => [name, quantizedLayout(name, shape)]));
}

/** Weights that a graph with quantized layers reads as they are. */
export function wholeWeights(config: ModelConfig): ReadonlySet<string> {
  const layout = parameterLayout(config).filter((spec) => spec.name === embeddings || !isLinear(config, spec));
  return new Set(layout.map(({ name }) => name));
}

const embeddings = 'model.embed_tokens.weight';

function isLinear(config: ModelConfig, { name, shape }: ParameterSpec): boolean {
  // Which experts a token goes through is decided in 32-bit floats.
  if (shape.length !== 2 || name.endsWith('.mlp.gate.weight')) return false;
  return name !== embeddings || outputLayerName(config) === embeddings;
}

/** Quantizes versions of one model, a layer at a time and beside the event loop. */
export class Quantizer {
  readonly #config: ModelConfig;
  readonly #options: SessionOptions;
  /** By the sizes of a layer. */
  readonly #sessions = new Map<string, Promise<InferenceSession>>();

  constructor(config: ModelConfig, options: SessionOptions) {
    this.#config = config;
    this.#options = options;
  }

  /** What a graph with quantized layers reads of a version, by name. */
  async quantize({ tensors }: Parameters): Promise<Tensors> {
    const whole = [...wholeWeights(this.#config)].map((name) => [name, tensors[name]!] as const);
    const constants: Record<string, Tensor> = Object.fromEntries(whole);
    for (const [name, { values, scales }] of quantizedLayers(this.#config)) {
      const weight = tensors[name]!;
      const session = await this.#sessionFor(weight.dims);
      const parts = {
        values: new Tensor(values.type, new Int8Array(weight.size), values.shape),
        scales: new Tensor(scales.type, new Float32Array(scales.shape[0]!), scales.shape),
      };
      await session.run({ weight }, parts);
      constants[values.name] = parts.values;
      constants[scales.name] = parts.scales;
    }
    return constants;
  }

  async release(): Promise<void> {
    for (const session of this.#sessions.values()) await (await session).release();
  }

  #sessionFor(shape: readonly number[]): Promise<InferenceSession> {
    const key = shape.join();
    const session = this.#sessions.get(key) ?? openSession(quantizingGraph(shape), this.#options);
    this.#sessions.set(key, session);
    return session;
  }
}

function quantizingGraph(shape: readonly number[]): Graph {
  const graph = new Graph();
  const { values, scales } = quantizeWeight(graph.input('weight', 'float32', shape));
  graph.output('values', values);
  graph.output('scales', scales);
  return graph;
}
