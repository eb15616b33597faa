import { randomStream } from '../../core/random.ts';
import { adaptedLayers, type LoraConfig } from '../model/adapter-layout.ts';
import type { ModelConfig } from '../model/config.ts';
import type { Tensor } from '../onnx/runtime.ts';
import { floats } from '../onnx/session.ts';
import type { MicroBatch } from './micro-batches.ts';
import { dropoutName, type DropoutRows } from './train-graph.ts';

/** Keys of one pass's masks, beside the row, the layer and the position. */
export interface DropoutKey {
  readonly seed: number;
  readonly pass: number;
}

/**
 * Masks for the inputs of adapters (Srivastava et al. 2014, inverted): each element is 0 with probability p, else 1 /
 * (1 − p). They are keyed by the row of the batch: the same in every micro-batch and in a replay. Made here rather than
 * in the graph, whose random numbers cannot be keyed; 4 bytes per token and layer input.
 */
export function dropoutFeeds(
  micro: MicroBatch,
  options: {
    readonly config: ModelConfig;
    readonly lora: LoraConfig;
    readonly inputNames: readonly string[];
    readonly key: DropoutKey;
  },
): Record<string, Tensor> {
  const { config, lora, inputNames, key } = options;
  const wanted = new Set(inputNames);
  const feeds: Record<string, Tensor> = {};
  for (const { weight, inputs } of adaptedLayers(config, lora)) {
    for (const rows of ['positions', 'selected'] as const) {
      const name = dropoutName(rows, weight);
      if (!wanted.has(name)) continue;
      feeds[name] = mask(micro, { rows, inputs, dropout: lora.dropout, key: [key.seed, key.pass, weight] });
    }
  }
  return feeds;
}

interface MaskShape {
  readonly rows: DropoutRows;
  readonly inputs: number;
  readonly dropout: number;
  readonly key: readonly (number | string)[];
}

function mask(micro: MicroBatch, { rows, inputs, dropout, key }: MaskShape): Tensor {
  const keep = 1 / (1 - dropout);
  const count = rows === 'positions' ? micro.rows.length * micro.width : micro.selected.length;
  const values = new Float32Array(count * inputs);
  const rowOf = (i: number): number =>
    rows === 'positions' ? micro.rows[Math.floor(i / micro.width)]! : micro.sourceRow[i]!;
  let row = -1;
  let random = (): number => 0;
  for (let i = 0; i < count; i++) {
    if (rowOf(i) !== row) {
      row = rowOf(i);
      random = randomStream('dropout', ...key, row);
    }
    for (let column = 0; column < inputs; column++) values[i * inputs + column] = random() < dropout ? 0 : keep;
  }
  return floats(values, [count, inputs]);
}
