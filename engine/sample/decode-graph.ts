import assert from 'node:assert/strict';
import type { ModelConfig } from '../model/config.ts';
import { decoderLogits, rotaryTables, weightInputs } from '../model/decoder.ts';
import { Graph, type Value } from '../onnx/graph.ts';
import type { Shape } from '../onnx/model-proto.ts';
import { multiply, reshape, selectRows } from '../onnx/operators.ts';

export type DecodePhase = 'prefill' | 'step';

export const cacheNames = (layer: number): { pastKey: string; pastValue: string; key: string; value: string } => ({
  pastKey: `past.${layer}.key`,
  pastValue: `past.${layer}.value`,
  key: `present.${layer}.key`,
  value: `present.${layer}.value`,
});

/**
 * One forward pass that appends keys and values to a cache in place and samples the next token of every row.
 *
 * prefill: tokens [batch, sequence], padded on the right; `last` [rows] = index, in the flattened tokens, of the token
 * each sampled row continues. Rows may repeat an index: choices of one prompt share its prefill.
 * step: tokens [batch, 1]; the sampled rows are the batch.
 */
export function buildDecodeGraph(config: ModelConfig, phase: DecodePhase): Graph {
  const graph = new Graph();
  const sequence = phase === 'step' ? 1 : 'sequence';
  const tokens = graph.input('tokens', 'int32', ['batch', sequence]);
  graph.defineSize('batch', tokens, 0);
  if (phase === 'prefill') graph.defineSize('sequence', tokens, 1);
  const positions = phase === 'step' ? 'batch' : 'positions';
  const last = phase === 'prefill' ? graph.input('last', 'int64', ['rows']) : null;
  const logits = decoderLogits(reshape(tokens, [positions]), {
    config,
    weights: weightInputs(graph, config, false),
    attend: cachedAttention(graph, config, { positions, sequence }),
    selectOutputs: (rows) => (last ? selectRows(rows, last) : rows),
  });
  sampleTokens(graph, logits);
  return graph;
}

/** Grouped-query attention with rotary embedding over a cache whose rows have their own lengths. */
function cachedAttention(
  graph: Graph,
  config: ModelConfig,
  { positions, sequence }: { positions: string; sequence: number | string },
): (layer: number, query: Value, key: Value, value: Value) => Value {
  const pastLengths = graph.input('past_lengths', 'int32', ['batch']);
  const totalLength = graph.input('total_length', 'int32', []);
  const { cosine, sine } = rotaryTables(graph, config);
  const cacheShape: Shape = ['batch', config.keyValueHeadCount, 'cache', config.headSize];
  const wide = (value: Value, heads: number): Value => reshape(value, ['batch', sequence, heads * config.headSize]);
  return (layer, query, key, value) => {
    const names = cacheNames(layer);
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
      cosine,
      sine,
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
          do_rotary: { int: 1 },
          scale: { float: 1 / Math.sqrt(config.headSize) },
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

/**
 * Draws by inversion: the token is the first whose cumulative probability exceeds u · total, u in [0, 1). Inputs are
 * columns [rows, 1]: `uniform`, `inverse_temperature` and `greedy` (true = the likeliest token, the first of equals).
 * The log probability is of softmax(logits · inverse_temperature), never truncated.
 */
function sampleTokens(graph: Graph, logits: Value): void {
  const rows = logits.shape[0];
  assert(rows !== undefined, 'logits are [rows, vocabulary]');
  const column: Shape = [rows, 1];
  const uniform = graph.input('uniform', 'float32', column);
  const inverseTemperature = graph.input('inverse_temperature', 'float32', column);
  const greedy = graph.input('greedy', 'bool', column);
  const scaled = multiply(logits, inverseTemperature);
  const attributes = { axis: { int: -1 } };
  const { shape } = logits;
  const logprobs = graph.node('LogSoftmax', [scaled], { attributes, shape });
  const probabilities = graph.node('Softmax', [scaled], { attributes, shape });
  const cumulative = graph.node('CumSum', [probabilities, graph.integer(1)], { shape });
  const total = graph.node('ReduceMax', [cumulative, graph.integers([1])], {
    attributes: { keepdims: { int: 1 } },
    shape: column,
  });
  const passed = graph.node('LessOrEqual', [cumulative, multiply(total, uniform)], { shape, type: 'bool' });
  const counts = graph.node('Cast', [passed], { attributes: { to: { int: 6 } }, shape, type: 'int32' });
  const drawn = graph.node('ReduceSum', [counts, graph.integers([1])], {
    attributes: { keepdims: { int: 1 } },
    shape: column,
  });
  const token = graph.node('Where', [greedy, likeliest(graph, scaled, column), drawn], {
    shape: column,
    type: 'int32',
  });
  const logprob = graph.node('GatherElements', [logprobs, token], { attributes, shape: column });
  graph.output('token', token);
  graph.output('logprob', logprob);
}

function likeliest(graph: Graph, logits: Value, column: Shape): Value {
  const best = graph.node('ArgMax', [logits], {
    attributes: { axis: { int: -1 }, keepdims: { int: 1 } },
    shape: column,
    type: 'int64',
  });
  return graph.node('Cast', [best], { attributes: { to: { int: 6 } }, shape: column, type: 'int32' });
}
