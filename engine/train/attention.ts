import assert from 'node:assert/strict';
import type { ModelConfig } from '../model/config.ts';
import { rotaryTables } from '../model/decoder.ts';
import { attentionOf } from '../model/families.ts';
import { recomputed } from '../onnx/recompute.ts';
import { groupedQueryAttention } from '../onnx/composites.ts';
import type { Graph, Value } from '../onnx/graph.ts';
import { reshape } from '../onnx/operators.ts';

/**
 * Inputs for rows that share a beginning: the position of each slot in its row, int64 [batch, sequence], and the bias
 * on scores, [batch, 1, sequence, sequence].
 */
export interface SharedRows {
  readonly positions: Value;
  readonly bias: Value;
}

/** Attention of every layer over whole sequences: the decoder's hook for training and scoring. */
export function causalAttention(
  graph: Graph,
  config: ModelConfig,
  sharing: SharedRows | null = null,
): (layer: number, query: Value, key: Value, value: Value) => Value {
  const { headCount, keyValueHeadCount, headSize, attentionScale: scale } = config;
  const bySequence = (x: Value, heads: number): Value => reshape(x, ['batch', 'sequence', heads * headSize]);
  return (layer, query, key, value) => {
    const { rotary, window } = attentionOf(config, layer);
    const waves = rotaryTables(graph, config, rotary);
    const tables = waves && { positions: sharing?.positions ?? graph.integers([0]), ...waves };
    const parts = {
      query: bySequence(query, headCount),
      key: bySequence(key, keyValueHeadCount),
      value: bySequence(value, keyValueHeadCount),
    };
    // Probabilities, [batch, heads, sequence, sequence], are there for one layer at a time.
    const attended = recomputed([parts.query, parts.key, parts.value], ([query, key, value]) => {
      assert(query && key && value, 'attention has three inputs');
      return groupedQueryAttention({ query, key, value }, tables, {
        ...config,
        scale,
        window,
        bias: sharing?.bias ?? null,
      });
    });
    return reshape(attended, ['positions', headCount * headSize]);
  };
}
