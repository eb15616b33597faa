import assert from 'node:assert/strict';
import type { Graph, Value } from '../onnx/graph.ts';
import type { Dimension } from '../onnx/model-proto.ts';
import { gatedGelu } from '../onnx/activations.ts';
import { gatedSilu, rmsNorm } from '../onnx/composites.ts';
import { recomputed } from '../onnx/recompute.ts';
import { add, embed, linear, multiply, reshape } from '../onnx/operators.ts';
import type { AttentionKind, ModelConfig } from './config.ts';
import { mixture } from './mixture.ts';
import { embeddingsName, expertPrefix, layerPrefix, outputLayerName, parameterLayout } from './parameter-layout.ts';
import { rotaryOf } from './rotary.ts';

/** A low-rank addition to one linear layer (Hu et al. 2021): x Wᵀ + scale · dropout(x) Aᵀ Bᵀ. */
export interface LinearAdapter {
  /** [r, in] */
  readonly a: Value;
  /** [out, r] */
  readonly b: Value;
  readonly scale: number;
  readonly dropout?: (x: Value) => Value;
}

/**
 * The decoder as graph nodes: the families differ in biases, norms, rotary frequencies, attention and experts (layout
 * of transformers' ForCausalLM classes). Sampling and training share all of it except attention, which each passes in.
 */
interface DecoderParts {
  readonly config: ModelConfig;
  /** Weights are inputs of the graph, so that one session serves every policy version. */
  readonly weights: ReadonlyMap<string, Value>;
  /** Keyed by the name of the adapted weight, `model.layers.0.self_attn.q_proj.weight`. */
  readonly adapters?: ReadonlyMap<string, LinearAdapter>;
  /**
   * Attention of one layer: query [tokens, heads, headSize], key and value [tokens, keyValueHeads, headSize], all
   * without rotary embedding → [tokens, heads · headSize].
   */
  readonly attend: (layer: number, query: Value, key: Value, value: Value) => Value;
  /** x Wᵀ for the weight of that name; null = use `weights`. */
  readonly product?: (x: Value, name: string) => Value | null;
  /** Wraps the run of an expert over the rows routed to it; by default the expert runs unwrapped. */
  readonly runExpert?: (x: Value, run: (x: Value) => Value) => Value;
  /**
   * Every so many-th layer keeps only its input for the gradient, and its activations are computed again. 0 = no layer.
   */
  readonly recomputesEvery?: number;
  /** Keeps only the rows [tokens, …] that need logits; applied as early as that is possible. */
  readonly selectOutputs: (rows: Value) => Value;
}

/** `only`: the names of those that the graph reads; all of them unless given. */
export function weightInputs(
  graph: Graph,
  config: ModelConfig,
  trainable: boolean,
  only?: ReadonlySet<string>,
): ReadonlyMap<string, Value> {
  const options = { needsGradient: trainable };
  const read = parameterLayout(config).filter(({ name }) => only?.has(name) ?? true);
  const inputs = read.map(({ name, shape }): [string, Value] => [name, graph.input(name, 'float32', shape, options)]);
  return new Map(inputs);
}

/** tokens [tokens] → logits [selected tokens, vocabulary]. */
export function decoderLogits(tokens: Value, parts: DecoderParts): Value {
  return productOf(decoderHidden(tokens, parts), outputLayerName(parts.config), parts);
}

/** tokens [tokens] → inputs of the output layer, [selected tokens, hidden]. */
export function decoderHidden(tokens: Value, parts: DecoderParts): Value {
  const { config } = parts;
  const embedded = embed(weight(parts, embeddingsName), tokens);
  let hidden = config.embeddingScale === 1 ? embedded : multiply(embedded, config.embeddingScale);
  const { recomputesEvery: every = 0 } = parts;
  for (let layer = 0; layer < config.layerCount; layer++) {
    const compute = every > 0 && layer % every === 0 ? recomputedLayer : decoderLayer;
    hidden = compute(hidden, layer, parts);
  }
  return normalize(hidden, 'model.norm', parts);
}

/** cos and sin of position · frequency, [positionsMax, headSize / 2] each; null in layers without rotary embedding. */
export function rotaryTables(
  graph: Graph,
  config: ModelConfig,
  kind: AttentionKind['rotary'],
): { cosine: Value; sine: Value } | null {
  const rotary = rotaryOf(config, kind);
  if (rotary === null) return null;
  const { frequencies, factor } = rotary;
  const pairs = frequencies.length;
  const angles = (wave: (angle: number) => number): Value => {
    const table = new Float32Array(config.positionsMax * pairs);
    for (let position = 0; position < config.positionsMax; position++) {
      for (let i = 0; i < pairs; i++) {
        table[position * pairs + i] = factor * wave(position * frequencies[i]!);
      }
    }
    return graph.table(table, [config.positionsMax, pairs]);
  };
  return graph.shared(`rotary tables, ${kind}`, () => ({ cosine: angles(Math.cos), sine: angles(Math.sin) }));
}

function decoderLayer(input: Value, layer: number, parts: DecoderParts): Value {
  const { config } = parts;
  const prefix = layerPrefix(layer);
  const sandwiched = (x: Value, name: string): Value =>
    config.sandwichNorms ? normalize(x, `${prefix}${name}`, parts) : x;
  const normalized = normalize(input, `${prefix}input_layernorm`, parts);
  const attended = parts.attend(layer, ...projections(normalized, prefix, parts));
  // Rows of the last layer feed nothing but their own logits: those without any stop here.
  const keep = layer === config.layerCount - 1 ? parts.selectOutputs : (rows: Value): Value => rows;
  const output = project(keep(attended), `${prefix}self_attn.o_proj`, parts);
  const hidden = add(keep(input), sandwiched(output, 'post_attention_layernorm'));
  const before = config.sandwichNorms ? 'pre_feedforward_layernorm' : 'post_attention_layernorm';
  const fed = feedForward(normalize(hidden, `${prefix}${before}`, parts), prefix, parts);
  return add(hidden, sandwiched(fed, 'post_feedforward_layernorm'));
}

function normalize(x: Value, name: string, parts: DecoderParts): Value {
  const { normEpsilon, normsAddOne } = parts.config;
  const own = weight(parts, `${name}.weight`);
  return rmsNorm(x, normsAddOne ? add(own, 1) : own, normEpsilon);
}

function recomputedLayer(input: Value, layer: number, parts: DecoderParts): Value {
  const prefix = layerPrefix(layer);
  const weights = [...parts.weights].filter(([name, { needsGradient }]) => needsGradient && name.startsWith(prefix));
  const adapters = [...(parts.adapters ?? [])].filter(([name]) => name.startsWith(prefix));
  const inputs = [input, ...weights.map(([, value]) => value), ...adapters.flatMap(([, { a, b }]) => [a, b])];
  return recomputed(inputs, (values) => {
    const [x, ...trained] = values;
    assert(x, 'a layer has an input');
    const factors = trained.slice(weights.length);
    const own = {
      weights: new Map([...parts.weights, ...weights.map(([name], i) => [name, trained[i]!] as const)]),
      adapters: new Map([
        ...(parts.adapters ?? []),
        ...adapters.map(([name, adapter], i) => {
          return [name, { ...adapter, a: factors[2 * i]!, b: factors[2 * i + 1]! }] as const;
        }),
      ]),
    };
    return decoderLayer(x, layer, { ...parts, ...own });
  });
}

function projections(x: Value, prefix: string, parts: DecoderParts): [Value, Value, Value] {
  const { config } = parts;
  const heads = (name: string, count: number): Value => {
    const rows: Dimension | undefined = x.shape[0];
    assert(rows !== undefined, 'hidden states are [tokens, hidden]');
    return reshape(project(x, `${prefix}self_attn.${name}`, parts), [rows, count, config.headSize]);
  };
  const norm = (value: Value, name: string): Value =>
    config.queryKeyNorm ? normalize(value, `${prefix}self_attn.${name}`, parts) : value;
  return [
    norm(heads('q_proj', config.headCount), 'q_norm'),
    norm(heads('k_proj', config.keyValueHeadCount), 'k_norm'),
    heads('v_proj', config.keyValueHeadCount),
  ];
}

function feedForward(normalized: Value, prefix: string, parts: DecoderParts): Value {
  const { experts, activation } = parts.config;
  const network = (x: Value, name: string): Value => {
    const gate = project(x, `${name}gate_proj`, parts);
    const up = project(x, `${name}up_proj`, parts);
    return project(activation === 'silu' ? gatedSilu(gate, up) : gatedGelu(gate, up), `${name}down_proj`, parts);
  };
  if (experts === null) return network(normalized, `${prefix}mlp.`);
  const scores = project(normalized, `${prefix}mlp.gate`, parts);
  const { runExpert = (x, run) => run(x) } = parts;
  const run = (x: Value, expert: number): Value =>
    runExpert(x, (rows) => network(rows, `${prefix}${expertPrefix(expert)}`));
  return mixture(normalized, scores, { ...experts, run });
}

/** A linear layer with its bias and its adapter, if any. */
function project(x: Value, name: string, parts: DecoderParts): Value {
  const product = productOf(x, `${name}.weight`, parts);
  const bias = parts.weights.get(`${name}.bias`);
  const biased = bias ? add(product, bias) : product;
  const adapter = parts.adapters?.get(`${name}.weight`);
  return adapter ? add(biased, adapted(x, adapter)) : biased;
}

function productOf(x: Value, name: string, parts: DecoderParts): Value {
  return parts.product?.(x, name) ?? linear(x, weight(parts, name));
}

function adapted(x: Value, { a, b, scale, dropout }: LinearAdapter): Value {
  const narrow = linear(dropout ? dropout(x) : x, a);
  return linear(scale === 1 ? narrow : multiply(narrow, scale), b);
}

function weight(parts: DecoderParts, name: string): Value {
  const value = parts.weights.get(name);
  assert(value, `the graph has no weight ${name}`);
  return value;
}
