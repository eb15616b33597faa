import assert from 'node:assert/strict';
import type { Graph, Value } from '../onnx/graph.ts';
import type { Dimension } from '../onnx/model-proto.ts';
import { add, embed, gatedSilu, linear, reshape, rmsNorm } from '../onnx/operators.ts';
import type { ModelConfig } from './config.ts';
import { layerPrefix, outputLayerName, parameterLayout } from './parameters.ts';

/**
 * The Qwen3 decoder as graph nodes (Qwen3 technical report, 2025; layout of transformers' Qwen3ForCausalLM). Sampling
 * and training share every line of it but the attention itself, which each hands in.
 */
export interface DecoderParts {
  readonly config: ModelConfig;
  /** Weights are inputs of the graph, so that one session serves every policy version. */
  readonly weights: ReadonlyMap<string, Value>;
  /**
   * Attention of one layer: query [tokens, heads, headSize], key and value [tokens, keyValueHeads, headSize], all
   * without rotary embedding → [tokens, heads · headSize].
   */
  readonly attend: (layer: number, query: Value, key: Value, value: Value) => Value;
  /** Keeps only the rows [tokens, …] that need logits; applied as early as that is possible. */
  readonly selectOutputs: (rows: Value) => Value;
}

export function weightInputs(graph: Graph, config: ModelConfig, trainable: boolean): ReadonlyMap<string, Value> {
  const options = { needsGradient: trainable };
  const inputs = parameterLayout(config).map(({ name, shape }): [string, Value] => [
    name,
    graph.input(name, 'float32', shape, options),
  ]);
  return new Map(inputs);
}

/** tokens [tokens] → logits [selected tokens, vocabulary]. */
export function decoderLogits(tokens: Value, parts: DecoderParts): Value {
  const { config } = parts;
  let hidden = embed(weight(parts, 'model.embed_tokens.weight'), tokens);
  for (let layer = 0; layer < config.layerCount; layer++) hidden = decoderLayer(hidden, layer, parts);
  const normalized = rmsNorm(hidden, weight(parts, 'model.norm.weight'), config.normEpsilon);
  return linear(normalized, weight(parts, outputLayerName(config)));
}

export function rotaryTables(graph: Graph, config: ModelConfig): { cosine: Value; sine: Value } {
  const pairs = config.headSize / 2;
  const angles = (wave: (angle: number) => number): Value => {
    const table = new Float32Array(config.positionsMax * pairs);
    for (let position = 0; position < config.positionsMax; position++) {
      for (let i = 0; i < pairs; i++) {
        table[position * pairs + i] = wave(position * config.ropeTheta ** ((-2 * i) / config.headSize));
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
  const hidden = add(keep(input), linear(keep(attended), weight(parts, `${prefix}self_attn.o_proj.weight`)));
  return add(hidden, feedForward(hidden, prefix, parts));
}

function projections(x: Value, prefix: string, parts: DecoderParts): [Value, Value, Value] {
  const { config } = parts;
  const heads = (name: string, count: number): Value => {
    const rows: Dimension | undefined = x.shape[0];
    assert(rows !== undefined, 'hidden states are [tokens, hidden]');
    const projected = linear(x, weight(parts, `${prefix}self_attn.${name}.weight`));
    return reshape(projected, [rows, count, config.headSize]);
  };
  const norm = (value: Value, name: string): Value =>
    rmsNorm(value, weight(parts, `${prefix}self_attn.${name}.weight`), config.normEpsilon);
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
  const gate = linear(normalized, weight(parts, `${prefix}mlp.gate_proj.weight`));
  const up = linear(normalized, weight(parts, `${prefix}mlp.up_proj.weight`));
  return linear(gatedSilu(gate, up), weight(parts, `${prefix}mlp.down_proj.weight`));
}

function weight(parts: DecoderParts, name: string): Value {
  const value = parts.weights.get(name);
  assert(value, `the graph has no weight ${name}`);
  return value;
}
