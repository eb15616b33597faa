import { createHash } from 'node:crypto';
import { randomStream } from '../../core/random.ts';
import type { Graph, Value } from '../onnx/graph.ts';
import type { ModelConfig } from './config.ts';
import type { LinearAdapter } from './decoder.ts';
import { adaptedLayers, type AdaptedLayer, type LoraConfig } from './adapter-layout.ts';
import { type ParameterSpec, placed } from './parameter-layout.ts';
import { FlatTensors, Parameters, updateWithFloats } from './parameters.ts';

/** Trainable tensors of an adapter, by PEFT's names. A gradient or a moment of one is another instance. */
export class AdapterParameters extends FlatTensors {
  readonly config: ModelConfig;
  readonly lora: LoraConfig;

  constructor(config: ModelConfig, lora: LoraConfig, flat?: Float32Array) {
    super(adapterLayout(config, lora), flat);
    this.config = config;
    this.lora = lora;
  }
}

/** Weights that are a base and an adapter. They are known by those two, and are not to be trained any further. */
export class MergedParameters extends Parameters {
  readonly adapter: AdapterParameters;
  readonly baseDigest: string;
  /** The weights without the adapter; null when the merged weights took over their memory. */
  readonly base: Parameters | null;

  constructor(
    flat: Float32Array | (() => Float32Array),
    adapter: AdapterParameters,
    { digest, base }: { digest: string; base: Parameters | null },
  ) {
    super(adapter.config, flat);
    this.adapter = adapter;
    this.baseDigest = digest;
    this.base = base;
  }

  override digest(): string {
    return policyDigest(this.baseDigest, this.adapter);
  }
}

/** Identity of a policy that is a base and an adapter: SHA-256 over the base's digest (its hex text) and the adapter. */
export function policyDigest(baseDigest: string, adapter: AdapterParameters): string {
  return updateWithFloats(createHash('sha256').update(baseDigest), adapter.flat).digest('hex');
}

/** A from U(−1/√in, 1/√in), PEFT's Kaiming-uniform with a = √5; B = 0, so that the policy starts as its base. */
export function createAdapter(config: ModelConfig, lora: LoraConfig, seed: number): AdapterParameters {
  const adapter = new AdapterParameters(config, lora);
  for (const { a, inputs } of adaptedLayers(config, lora)) {
    const random = randomStream('adapter', seed, a);
    const view = adapter.view(a);
    for (let i = 0; i < view.length; i++) view[i] = (2 * random() - 1) / Math.sqrt(inputs);
  }
  return adapter;
}

/**
 * Returns W + scale · B A as new weights, in `memory` if given. Sums are in double precision and in a fixed order, so bits are the same
 * everywhere.
 */
export function mergeAdapter(
  base: Parameters,
  adapter: AdapterParameters,
  baseDigest = base.digest(),
  memory: Float32Array | null = null,
): MergedParameters {
  return new MergedParameters(addAdapter(copyOf(base, memory), adapter), adapter, { digest: baseDigest, base });
}

/** Merges in the base's own memory: `base` holds the merged weights afterwards. */
export function mergeInPlace(base: Parameters, adapter: AdapterParameters, baseDigest: string): MergedParameters {
  return new MergedParameters(addAdapter(base, adapter), adapter, { digest: baseDigest, base: null });
}

/** Merges on the first read of the merged weights. Neither input may change before. */
export function mergeWhenRead(base: Parameters, adapter: AdapterParameters, baseDigest: string): MergedParameters {
  return new MergedParameters(() => addAdapter(base.clone(), adapter), adapter, { digest: baseDigest, base });
}

/** Copies into `memory` if its size fits, else into new memory. */
function copyOf(base: Parameters, memory: Float32Array | null): Parameters {
  if (memory?.length !== base.flat.length) return base.clone();
  memory.set(base.flat);
  return new Parameters(base.config, memory);
}

/** Adds it to the weights of its base, in their memory. */
function addAdapter(weights: Parameters, adapter: AdapterParameters): Float32Array {
  const scale = loraScale(adapter.lora);
  for (const layer of adaptedLayers(adapter.config, adapter.lora)) {
    addProduct(weights.view(layer.weight), adapter.view(layer.a), adapter.view(layer.b), { ...layer, scale });
  }
  return weights.flat;
}

export function loraScale({ alpha, r, rankStabilized }: LoraConfig): number {
  return alpha / (rankStabilized ? Math.sqrt(r) : r);
}

interface AdapterInputOptions {
  readonly trainable: boolean;
  /** Applied to the input of every adapted layer. */
  readonly dropout?: (x: Value, layer: AdaptedLayer) => Value;
}

/** Declares the adapter's tensors as inputs of a graph, under PEFT's names, for DecoderParts.adapters. */
export function adapterInputs(
  graph: Graph,
  config: ModelConfig,
  lora: LoraConfig,
  { trainable, dropout }: AdapterInputOptions,
): ReadonlyMap<string, LinearAdapter> {
  const options = { needsGradient: trainable };
  const scale = loraScale(lora);
  const inputs = adaptedLayers(config, lora).map((layer): [string, LinearAdapter] => [
    layer.weight,
    {
      a: graph.input(layer.a, 'float32', [lora.r, layer.inputs], options),
      b: graph.input(layer.b, 'float32', [layer.outputs, lora.r], options),
      scale,
      ...(dropout && { dropout: (x: Value) => dropout(x, layer) }),
    },
  ]);
  return new Map(inputs);
}

function adapterLayout(config: ModelConfig, lora: LoraConfig): ParameterSpec[] {
  return placed(
    adaptedLayers(config, lora).flatMap(({ a, b, inputs, outputs }) => [
      [a, [lora.r, inputs]],
      [b, [outputs, lora.r]],
    ]),
  );
}

interface Product {
  readonly inputs: number;
  readonly outputs: number;
  readonly scale: number;
}

/** weight [out, in] += scale · b [out, r] · a [r, in] */
function addProduct(weight: Float32Array, a: Float32Array, b: Float32Array, { inputs, outputs, scale }: Product): void {
  const r = a.length / inputs;
  const row = new Float64Array(inputs);
  for (let o = 0; o < outputs; o++) {
    row.fill(0);
    for (let k = 0; k < r; k += 4) addFourRows(row, a, b.subarray(o * r + k, (o + 1) * r), k);
    const start = o * inputs;
    for (let i = 0; i < inputs; i++) weight[start + i]! += scale * row[i]!;
  }
}

/** row += factors[0] · a[k] + … + factors[3] · a[k + 3], as far as there are factors. Four at a time: row is read and written less. */
function addFourRows(row: Float64Array, a: Float32Array, factors: Float32Array, k: number): void {
  const inputs = row.length;
  const [f0 = 0, f1 = 0, f2 = 0, f3 = 0] = [factors[0], factors[1], factors[2], factors[3]];
  // Missing rows get a factor of 0, so any existing row can replace them.
  const startOf = (i: number): number => (k + (i < factors.length ? i : 0)) * inputs;
  const [a0, a1, a2, a3] = [startOf(0), startOf(1), startOf(2), startOf(3)];
  for (let i = 0; i < inputs; i++) {
    row[i]! += f0 * a[a0 + i]! + f1 * a[a1 + i]! + f2 * a[a2 + i]! + f3 * a[a3 + i]!;
  }
}
