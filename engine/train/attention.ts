import type { ModelConfig } from '../model/config.ts';
import { rotaryTables } from '../model/decoder.ts';
import type { Graph, Value } from '../onnx/graph.ts';
import { add, matmul, reshape, rotary, softmax, transpose } from '../onnx/operators.ts';

/** Masked positions see this instead of their score; exp() of it is 0 in 32-bit floats. */
const maskedScore = -1e9;

/**
 * Full causal attention. Query heads that share a key-value head are rows of one product:
 * [batch, keyValueHeads, group · sequence, headSize] × [batch, keyValueHeads, headSize, sequence].
 */
export function causalAttention(
  graph: Graph,
  config: ModelConfig,
): (layer: number, query: Value, key: Value, value: Value) => Value {
  const { headCount, keyValueHeadCount, headSize } = config;
  const group = headCount / keyValueHeadCount;
  const groupedSequence = group === 1 ? 'sequence' : 'grouped_sequence';
  const tables = { positions: graph.integers([0]), ...rotaryTables(graph, config) };
  const bias = causalBias(graph, group, groupedSequence);
  const byHead = (value: Value, heads: number): Value =>
    transpose(reshape(value, ['batch', 'sequence', heads, headSize]), [0, 2, 1, 3]);
  return (_layer, query, key, value) => {
    const queries = reshape(rotary(byHead(query, headCount), tables), [
      'batch',
      keyValueHeadCount,
      groupedSequence,
      headSize,
    ]);
    const keys = rotary(byHead(key, keyValueHeadCount), tables);
    const scores = matmul(queries, keys, { transposeB: true, scale: 1 / Math.sqrt(headSize) });
    const attended = matmul(softmax(add(scores, bias)), byHead(value, keyValueHeadCount));
    const heads = reshape(attended, ['batch', headCount, 'sequence', headSize]);
    return reshape(transpose(heads, [0, 2, 1, 3]), ['positions', headCount * headSize]);
  };
}

/** [group · sequence, sequence]: 0 up to the diagonal, maskedScore above it, repeated for every head of a group. */
function causalBias(graph: Graph, group: number, groupedSequence: string): Value {
  const square = ['sequence', 'sequence'];
  const full = graph.node('Expand', [graph.scalar(maskedScore), graph.shapeVector(square)], { shape: square });
  const upper = graph.node('Trilu', [full, graph.integer(1)], { attributes: { upper: { int: 1 } }, shape: square });
  if (group === 1) return upper;
  return graph.node(
    'Concat',
    Array.from({ length: group }, () => upper),
    { attributes: { axis: { int: 0 } }, shape: [groupedSequence, 'sequence'] },
  );
}
