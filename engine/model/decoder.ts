import assert from 'node:assert/strict';
import type { Graph, Value } from '../onnx/graph.ts';
import type { Dimension } from '../onnx/model-proto.ts';
import { gatedSilu, rmsNorm } from '../onnx/composites.ts';
import { add, embed, linear, multiply, reshape } from '../onnx/operators.ts';
import type { ModelConfig } from './config.ts';
import { layerPrefix, outputLayerName, parameterLayout } from './parameter-layout.ts';
import { rotaryFrequencies } from './rotary.ts';

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
 * The decoder as graph nodes: Qwen3 (technical report, 2025), Qwen2 and Llama differ in biases, norms and rotary
 * frequencies alone (layout of transformers' ForCausalLM classes). Sampling and training share every line of it but
 * the attention itself, which each hands in.
 */
interface DecoderParts {
  readonly config: ModelConfig;
  /** Weights are inputs of the graph, so that one session serves every policy version. */
  readonly weights: ReadonlyMap<string, Value>;
  /** By the name of the weight each adapts, `model.layers.0.self_attn.q_proj.weight`. */
  readonly adapters?: ReadonlyMap<string, LinearAdapter>;
  /**
   * Attention of one layer: query [tokens, heads, headSize], key and value [tokens, keyValueHeads, headSize], all
   * without rotary embedding → [tokens, heads · headSize].
   */
  readonly attend: (layer: number, query: Value, key: Value, value: Value) => Value;
  /** x Wᵀ for the weight of that name; null = as it is in `weights`. */
  readonly product?: (x: Value, name: string) => Value | null;
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

/** tokens [tokens] → what the output layer reads, [selected tokens, hidden]. */
export function decoderHidden(tokens: Value, parts: DecoderParts): Value {
  const { config } = parts;
  let hidden = embed(weight(parts, 'model.embed_tokens.weight'), tokens);
  for (let layer = 0; layer < config.layerCount; layer++) hidden = decoderLayer(hidden, layer, parts);
  return rmsNorm(hidden, weight(parts, 'model.norm.weight'), config.normEpsilon);
}

/** cos and sin of position · frequency, [positionsMax, headSize / 2] each. */
export function rotaryTables(graph: Graph, config: ModelConfig): { cosine: Value; sine: Value } {
  const frequencies = rotaryFrequencies(config);
  const pairs = frequencies.length;
  const angles = (wave: (angle: number) => number): Value => {
    const table = new Float32Array(config.positionsMax * pairs);
    for (let position = 0; position < config.positionsMax; position++) {
      for (let i = 0; i < pairs; i++) {
        table[position * pairs + i] = wave(position * frequencies[i]!);
      }
    }
    return graph.table(table, [config.positionsMax, pairs]);
  };
  return { cosine: angles(Math.cos), sine: angles(Math.sin) };
}

function decoderLayer(input: Value, layer: number, parts: DecoderParts): Value {
  const { config } = parts;
  const prefix = layerPrefix(layer);
  const normalized = rmsNorm(input, weight(parts, `${prefix}input_layernorm.weight`), config.normEpsilon);
  const attended = parts.attend(layer, ...projections(normalized, prefix, parts));
  // Rows of the last layer feed nothing but their own logits: those without any stop here.
  const keep = layer === config.layerCount - 1 ? parts.selectOutputs : (rows: Value): Value => rows;
  const hidden = add(keep(input), project(keep(attended), `${prefix}self_attn.o_proj`, parts));
  return add(hidden, feedForward(hidden, prefix, parts));
}

function projections(x: Value, prefix: string, parts: DecoderParts): [Value, Value, Value] {
  const { config } = parts;
  const heads = (name: string, count: number): Value => {
    const rows: Dimension | undefined = x.shape[0];
    assert(rows !== undefined, 'hidden states are [tokens, hidden]');
    return reshape(project(x, `${prefix}self_attn.${name}`, parts), [rows, count, config.headSize]);
  };
  const norm = (value: Value, name: string): Value =>
    config.queryKeyNorm
      ? rmsNorm(value, weight(parts, `${prefix}self_attn.${name}.weight`), config.normEpsilon)
      : value;
  return [
    norm(heads('q_proj', config.headCount), 'q_norm'),
    norm(heads('k_proj', config.keyValueHeadCount), 'k_norm'),
    heads('v_proj', config.keyValueHeadCount),
  ];
}

function feedForward(hidden: Value, prefix: string, parts: DecoderParts): Value {
  const normalized = rmsNorm(
    hidden,
    weight(parts, `${prefix}post_attention_layernorm.weight`),
    parts.config.normEpsilon,
  );
  const gate = project(normalized, `${prefix}mlp.gate_proj`, parts);
  const up = project(normalized, `${prefix}mlp.up_proj`, parts);
  return project(gatedSilu(gate, up), `${prefix}mlp.down_proj`, parts);
}

/** A linear layer with what belongs to it: a bias where the model has one, an adapter where one is attached. */
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
