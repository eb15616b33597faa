import { createHash } from 'node:crypto';
import { RatchetError } from '../../core/errors.ts';
import { randomStream } from '../../core/random.ts';
import type { Graph, Value } from '../onnx/graph.ts';
import type { ModelConfig } from './config.ts';
import type { LinearAdapter } from './decoder.ts';
import {
  FlatTensors,
  type ParameterSpec,
  parameterLayout,
  Parameters,
  placed,
  updateWithFloats,
} from './parameters.ts';

/**
 * Low-rank adaptation (Hu et al. 2021): a linear layer W [out, in] becomes W + scale · B A with A [r, in], B [out, r].
 * Names and meanings are PEFT's, so that its adapters are ours and ours are its.
 */
export interface LoraConfig {
  readonly r: number;
  /** scale = alpha / r, or alpha / √r when rankStabilized (Kalajdzievski 2023). */
  readonly alpha: number;
  /** Part of the adapter's inputs that is dropped in training, in [0, 1). */
  readonly dropout: number;
  /** Names of linear layers or their ends (`q_proj`, `self_attn.q_proj`); all-linear = all but the output layer. */
  readonly targetModules: readonly string[] | 'all-linear';
  readonly rankStabilized?: boolean;
}

/** One adapted linear layer. */
export interface AdaptedLayer {
  /** The weight it adds to, `model.layers.0.self_attn.q_proj.weight`. */
  readonly weight: string;
  /** PEFT's tensor names. */
  readonly a: string;
  readonly b: string;
  readonly inputs: number;
  readonly outputs: number;
}

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

  constructor(flat: Float32Array, adapter: AdapterParameters, baseDigest: string) {
    super(adapter.config, flat);
    this.adapter = adapter;
    this.baseDigest = baseDigest;
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

/** W + scale · B A as new weights; sums in double precision and in a fixed order, so the same bits everywhere. */
export function mergeAdapter(
  base: Parameters,
  adapter: AdapterParameters,
  baseDigest = base.digest(),
): MergedParameters {
  return mergeInPlace(base.clone(), adapter, baseDigest);
}

/** The same in the base's own memory: `base` is the merged weights afterwards. */
export function mergeInPlace(base: Parameters, adapter: AdapterParameters, baseDigest: string): MergedParameters {
  const scale = loraScale(adapter.lora);
  for (const layer of adaptedLayers(adapter.config, adapter.lora)) {
    addProduct(base.view(layer.weight), adapter.view(layer.a), adapter.view(layer.b), { ...layer, scale });
  }
  return new MergedParameters(base.flat, adapter, baseDigest);
}

export function loraScale({ alpha, r, rankStabilized }: LoraConfig): number {
  return alpha / (rankStabilized ? Math.sqrt(r) : r);
}

export function adapterParameterCount(config: ModelConfig, lora: LoraConfig): number {
  return adaptedLayers(config, lora).reduce((total, { inputs, outputs }) => total + lora.r * (inputs + outputs), 0);
}

export interface AdapterInputOptions {
  readonly trainable: boolean;
  /** Applied to the input of every adapted layer. */
  readonly dropout?: (x: Value, layer: AdaptedLayer) => Value;
}

/** Declares the adapter's tensors as inputs of a graph, under PEFT's names: what DecoderParts.adapters takes. */
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

/** The layers that `targetModules` names, in the order of the model's own layout. */
export function adaptedLayers(config: ModelConfig, lora: LoraConfig): readonly AdaptedLayer[] {
  requireLora(lora);
  const linearLayers = parameterLayout(config).filter(isAdaptable);
  if (lora.targetModules === 'all-linear') return linearLayers.map(adaptedLayer);
  const names = linearLayers.map(({ name }) => moduleOf(name));
  for (const target of lora.targetModules) requireTarget(target, names);
  const targets = lora.targetModules;
  return linearLayers.filter(({ name }) => targets.some((target) => isNamed(moduleOf(name), target))).map(adaptedLayer);
}

function adapterLayout(config: ModelConfig, lora: LoraConfig): ParameterSpec[] {
  return placed(
    adaptedLayers(config, lora).flatMap(({ a, b, inputs, outputs }) => [
      [a, [lora.r, inputs]],
      [b, [outputs, lora.r]],
    ]),
  );
}

/** Matrices inside of the layers: not the embedding, not the output layer, no norm and no bias. */
function isAdaptable({ name, shape }: ParameterSpec): boolean {
  return shape.length === 2 && name.startsWith('model.layers.');
}

function adaptedLayer({ name, shape: [outputs, inputs] }: ParameterSpec): AdaptedLayer {
  const prefix = `base_model.model.${moduleOf(name)}`;
  const names = { weight: name, a: `${prefix}.lora_A.weight`, b: `${prefix}.lora_B.weight` };
  return { ...names, inputs: inputs!, outputs: outputs! };
}

function moduleOf(weightName: string): string {
  return weightName.replace(/\.weight$/, '');
}

/** PEFT's rule: the whole name, or its end after a dot. */
function isNamed(module: string, target: string): boolean {
  return module === target || module.endsWith(`.${target}`);
}

function requireLora({ r, alpha, dropout, targetModules }: LoraConfig): void {
  const require = (holds: boolean, expected: string, received: unknown): void => {
    if (!holds) throw unsupported(expected, JSON.stringify(received) ?? String(received));
  };
  require(Number.isInteger(r) && r >= 1, 'r to be an integer ≥ 1', r);
  require(Number.isFinite(alpha), 'alpha to be a number', alpha);
  require(dropout >= 0 && dropout < 1, 'dropout to be a number from 0 and below 1', dropout);
  require(targetModules.length > 0, 'target_modules to name a linear layer', targetModules);
}

function requireTarget(target: string, modules: readonly string[]): void {
  if (/(^|\.)(embed_tokens|lm_head)$/.test(target)) {
    throw unsupported('target_modules without the embedding and the output layer', `"${target}"`);
  }
  if (modules.some((module) => isNamed(module, target))) return;
  const known = [...new Set(modules.map((module) => module.split('.').at(-1)))].join(', ');
  throw unsupported(`target_modules to name linear layers (${known}, or "all-linear")`, `"${target}"`);
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
  // Rows beyond the last have a factor of 0 and stand for any other.
  const startOf = (i: number): number => (k + (i < factors.length ? i : 0)) * inputs;
  const [a0, a1, a2, a3] = [startOf(0), startOf(1), startOf(2), startOf(3)];
  for (let i = 0; i < inputs; i++) {
    row[i]! += f0 * a[a0 + i]! + f1 * a[a1 + i]! + f2 * a[a2 + i]! + f3 * a[a3 + i]!;
  }
}

function unsupported(expected: string, received: string): RatchetError {
  return new RatchetError('ModelUnsupported', `LoRA: expected ${expected}, got ${received}.`);
}
