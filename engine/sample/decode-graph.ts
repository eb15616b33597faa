import assert from 'node:assert/strict';
import type { ModelConfig } from '../model/config.ts';
import { decoderLogits, rotaryTables, weightInputs } from '../model/decoder.ts';
import { outputLayerName } from '../model/parameter-layout.ts';
import { attentionOf } from '../model/families.ts';
import type { LoraConfig } from '../model/adapter-layout.ts';
import { adapterInputs } from '../model/lora.ts';
import { inPairs } from '../model/mixture.ts';
import { Graph, type Value } from '../onnx/graph.ts';
import type { TensorShape } from '../onnx/model-proto.ts';
import { linear, multiply, reshape, selectRows } from '../onnx/operators.ts';
import { quantizedInputs } from '../onnx/quantized.ts';
import type { Quantization } from '../model/quantizations.ts';
import { quantizedLayers, wholeWeights } from './quantized-weights.ts';

export type DecodePhase = 'prefill' | 'step';

export interface KeptWeights {
  /** Quantization of linear layers; missing = none. */
  readonly quantization?: Quantization | undefined;
  /** An adapter beside them, in 32-bit floats; missing = none, or merged into them. */
  readonly lora?: LoraConfig | undefined;
  /** The output layer shares weights with the embedding table. It then has its own input, `tiedOutputName`. */
  readonly hasTiedOutput?: boolean;
}

/**
 * The output layer is packed into the session and the embedding table is fed. A session would copy a table that it looks rows up in, but
 * not weights that it packs.
 */
export const tiedOutputName = 'output_layer.weight';

interface DecodeGraph {
  readonly graph: Graph;
  /** The output [rows, vocabulary] that holds the logits. */
  readonly logits: string;
}

/** The step's output [rows, vocabulary] that holds softmax(logits · inverse_temperature). */
export const probabilitiesName = 'probabilities';

/** The step's output [rows], whole numbers of 64 bits: the token with the largest logit of each row, the first of equals. */
export const likeliestName = 'likeliest';

export const cacheNames = (layer: number): { pastKey: string; pastValue: string; key: string; value: string } => ({
  pastKey: `past.${layer}.key`,
  pastValue: `past.${layer}.value`,
  key: `present.${layer}.key`,
  value: `present.${layer}.value`,
});

/**
 * One forward pass that appends keys and values to a cache in place.
 *
 * prefill: tokens [batch, sequence], padded on the right; `last` [batch] = index, in the flattened tokens, of the token
 * whose logits are wanted.
 * step: tokens [batch, 1] and inverse_temperature [batch, 1]; gives probabilities and the likeliest tokens beside the logits.
 * Nothing of the vocabulary's size leaves the graph unless it is fetched.
 *
 * Weights are inputs.
 */
export function buildDecodeGraph(config: ModelConfig, phase: DecodePhase, kept: KeptWeights = {}): DecodeGraph {
  const graph = new Graph();
  const sequence = phase === 'step' ? 1 : 'sequence';
  const tokens = graph.input('tokens', 'int32', ['batch', sequence]);
  graph.defineSize('batch', tokens, 0);
  if (phase === 'prefill') graph.defineSize('sequence', tokens, 1);
  const positions = phase === 'step' ? 'batch' : 'positions';
  const last = phase === 'prefill' ? graph.input('last', 'int64', ['rows']) : null;
  const logits = decoderLogits(reshape(tokens, [positions]), {
    config,
    ...decoderWeights(graph, config, kept),
    runExpert: inPairs,
    attend: cachedAttention(graph, config, { positions, sequence }),
    selectOutputs: (rows) => (last ? selectRows(rows, last) : rows),
  });
  graph.directOutput(logits);
  if (phase === 'step') {
    outputProbabilities(graph, logits);
    outputLikeliest(graph, logits);
  }
  return { graph, logits: logits.name };
}

function decoderWeights(
  graph: Graph,
  config: ModelConfig,
  { quantization, lora, hasTiedOutput = false }: KeptWeights,
): Pick<Parameters<typeof decoderLogits>[1], 'weights' | 'product' | 'adapters'> {
  const adapters = lora && { adapters: adapterInputs(graph, config, lora, { trainable: false }) };
  if (quantization === undefined) {
    const weights = weightInputs(graph, config, false);
    if (!hasTiedOutput) return { weights, ...adapters };
    const shape = [config.vocabularySize, config.hiddenSize];
    const output = graph.input(tiedOutputName, 'float32', shape);
    return {
      weights,
      product: (x, name) => (name === outputLayerName(config) ? linear(x, output) : null),
      ...adapters,
    };
  }
  const layers = new Map(
    [...quantizedLayers(config, quantization)].map(([name, { scheme, tensors }]) => {
      const parts = quantizedInputs(graph, tensors);
      return [name, (x: Value) => scheme.product(x, parts)];
    }),
  );
  return {
    weights: weightInputs(graph, config, false, wholeWeights(config)),
    product: (x, name) => layers.get(name)?.(x) ?? null,
    ...adapters,
  };
}

/** Grouped-query attention with rotary embedding over a cache whose rows have their own lengths. */
function cachedAttention(
  graph: Graph,
  config: ModelConfig,
  { positions, sequence }: { positions: string; sequence: number | string },
): (layer: number, query: Value, key: Value, value: Value) => Value {
  const pastLengths = graph.input('past_lengths', 'int32', ['batch']);
  const totalLength = graph.input('total_length', 'int32', []);
  const cacheShape: TensorShape = ['batch', config.keyValueHeadCount, 'cache', config.headSize];
  const wide = (value: Value, heads: number): Value => reshape(value, ['batch', sequence, heads * config.headSize]);
  return (layer, query, key, value) => {
    const names = cacheNames(layer);
    const { rotary, window } = attentionOf(config, layer);
    const waves = rotaryTables(graph, config, rotary);
    const pastKey = graph.input(names.pastKey, 'float32', cacheShape);
    const pastValue = graph.input(names.pastValue, 'float32', cacheShape);
    const inputs = [
      wide(query, config.headCount),
      wide(key, config.keyValueHeadCount),
      wide(value, config.keyValueHeadCount),
      pastKey,
      pastValue,
      pastLengths,
      totalLength,
      ...(waves ? [waves.cosine, waves.sine] : []),
    ];
    const name = `attention.${layer}`;
    const [attended, presentKey, presentValue] = graph.namedNode(
      {
        operator: 'GroupQueryAttention',
        domain: 'com.microsoft',
        inputs: inputs.map((input) => input.name),
        outputs: [name, names.key, names.value],
        attributes: {
          num_heads: { int: config.headCount },
          kv_num_heads: { int: config.keyValueHeadCount },
          do_rotary: { int: waves ? 1 : 0 },
          scale: { float: config.attentionScale },
          ...(window !== null && { local_window_size: { int: window } }),
        },
      },
      [
        { name, type: 'float32', shape: ['batch', sequence, config.headCount * config.headSize] },
        { name: names.key, type: 'float32', shape: cacheShape },
        { name: names.value, type: 'float32', shape: cacheShape },
      ],
    );
    assert(attended && presentKey && presentValue, 'grouped-query attention has three outputs');
    graph.directOutput(presentKey);
    graph.directOutput(presentValue);
    return reshape(attended, [positions, config.headCount * config.headSize]);
  };
}

function outputProbabilities(graph: Graph, logits: Value): void {
  const { shape } = logits;
  const inverseTemperature = graph.input('inverse_temperature', 'float32', ['batch', 1]);
  const scaled = multiply(logits, inverseTemperature);
  const attributes = { axis: { int: -1 } };
  const [probabilities] = graph.namedNode(
    { operator: 'Softmax', domain: '', inputs: [scaled.name], outputs: [probabilitiesName], attributes },
    [{ name: probabilitiesName, type: 'float32', shape }],
  );
  assert(probabilities, 'softmax has one output');
  graph.directOutput(probabilities);
}

function outputLikeliest(graph: Graph, logits: Value): void {
  const attributes = { axis: { int: -1 }, keepdims: { int: 0 }, select_last_index: { int: 0 } };
  const [likeliest] = graph.namedNode(
    { operator: 'ArgMax', domain: '', inputs: [logits.name], outputs: [likeliestName], attributes },
    [{ name: likeliestName, type: 'int64', shape: [logits.shape[0]!] }],
  );
  assert(likeliest, 'the place of the largest has one output');
  graph.directOutput(likeliest);
}
