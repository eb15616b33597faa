import type { ModelConfig } from '../model/config.ts';
import { embeddingsName, outputLayerName, parameterLayout, type ParameterSpec } from '../model/parameter-layout.ts';
import type { Parameters } from '../model/parameters.ts';
import { Graph } from '../onnx/graph.ts';
import type { QuantizedScheme, QuantizedTensor } from '../onnx/quantized.ts';
import { blockSize, int4Blocks } from '../onnx/quantized-blocks.ts';
import { int8Rows } from '../onnx/quantized-rows.ts';
import { type InferenceSession, Tensor, type Tensors } from '../onnx/runtime.ts';
import { openSession, type SessionOptions } from '../onnx/session.ts';
import type { Quantization } from '../model/quantizations.ts';

interface QuantizedLayer {
  readonly scheme: QuantizedScheme;
  readonly tensors: readonly QuantizedTensor[];
}

/**
 * Weights of linear layers, by name; norms, biases and the embedding table stay unquantized. In a 4-bit model the output
 * layer gets 8, as in llama.cpp's files, since its rounding affects every token. So does a layer that cannot be divided
 * into blocks.
 */
export function quantizedLayers(config: ModelConfig, quantization: Quantization): ReadonlyMap<string, QuantizedLayer> {
  const layers = parameterLayout(config).filter((spec) => isLinear(config, spec));
  return new Map(
    layers.map(({ name, shape }) => {
      const isCut = name !== outputLayerName(config) && shape[1]! % blockSize === 0;
      const scheme = quantization === 'int4' && isCut ? int4Blocks : int8Rows;
      return [name, { scheme, tensors: scheme.tensorsFor(name, shape) }];
    }),
  );
}

/** Steps have a multiple of this number of rows. */
export function quantizedRows(config: ModelConfig, quantization: Quantization): number {
  return Math.max(...[...quantizedLayers(config, quantization).values()].map(({ scheme }) => scheme.rowsMultiple));
}

/** Weights that a graph with quantized layers reads as they are. */
export function wholeWeights(config: ModelConfig): ReadonlySet<string> {
  const layout = parameterLayout(config).filter((spec) => spec.name === embeddingsName || !isLinear(config, spec));
  return new Set(layout.map(({ name }) => name));
}

function isLinear(config: ModelConfig, { name, shape }: ParameterSpec): boolean {
  // Which experts a token goes through is decided in 32-bit floats.
  if (shape.length !== 2 || name.endsWith('.mlp.gate.weight')) return false;
  return name !== embeddingsName || outputLayerName(config) === embeddingsName;
}

/** Quantizes versions of one model, a layer at a time and beside the event loop. */
export class Quantizer {
  readonly #config: ModelConfig;
  readonly #layers: ReadonlyMap<string, QuantizedLayer>;
  readonly #options: SessionOptions;
  /** Keyed by the sizes of a layer. */
  readonly #sessions = new Map<string, Promise<InferenceSession>>();

  constructor(config: ModelConfig, quantization: Quantization, options: SessionOptions) {
    this.#config = config;
    this.#layers = quantizedLayers(config, quantization);
    this.#options = options;
  }

  /** A version's tensors for a graph with quantized layers, by name. */
  async quantize({ tensors }: Parameters): Promise<Tensors> {
    const whole = [...wholeWeights(this.#config)].map((name) => [name, tensors[name]!] as const);
    const constants: Record<string, Tensor> = Object.fromEntries(whole);
    for (const [name, layer] of this.#layers) {
      const weight = tensors[name]!;
      const session = await this.#sessionFor(layer, weight.dims);
      const parts = layer.tensors.map(emptyTensor);
      await session.run({ weight }, Object.fromEntries(parts.map((part, i) => [partName(i), part])));
      layer.tensors.forEach((tensor, i) => (constants[tensor.name] = parts[i]!));
    }
    return constants;
  }

  async release(): Promise<void> {
    for (const session of this.#sessions.values()) await (await session).release();
  }

  #sessionFor({ scheme, tensors }: QuantizedLayer, shape: readonly number[]): Promise<InferenceSession> {
    const key = [tensors[0]!.type, ...shape].join();
    const session = this.#sessions.get(key) ?? openSession(quantizingGraph(scheme, shape), this.#options);
    this.#sessions.set(key, session);
    return session;
  }
}

const partName = (i: number): string => `part.${i}`;

const arrays = { int8: Int8Array, uint8: Uint8Array, float32: Float32Array } as const;

function emptyTensor({ type, shape }: QuantizedTensor): Tensor {
  return new Tensor(type, new arrays[type](shape.reduce((product, size) => product * size, 1)), shape);
}

function quantizingGraph(scheme: QuantizedScheme, shape: readonly number[]): Graph {
  const graph = new Graph();
  scheme.quantize(graph.input('weight', 'float32', shape)).forEach((part, i) => graph.output(partName(i), part));
  return graph;
}
