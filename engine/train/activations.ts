import { activationBytesMax, trainLogitsMax, trainPositionsMax } from '../limits.ts';
import type { ModelConfig } from '../model/config.ts';

/**
 * Bytes that a layer keeps per position for its gradient, by its shape: the input and both norms, query, key, value and
 * attention's output, gate, up, and two products of them. Fitted to a model of 135 million parameters, where a
 * micro-batch of 1,024 positions takes 1.2 GB.
 */
export function activationBytes(config: ModelConfig): number {
  const { hiddenSize, headCount, keyValueHeadCount, headSize, feedForwardSize } = config;
  const attention = (2 * headCount + 2 * keyValueHeadCount) * headSize;
  return floatBytes * config.layerCount * (3 * hiddenSize + attention + 4 * feedForwardSize);
}

const floatBytes = 4;

/**
 * Largest micro-batch, in positions, whose activations are kept; a longer row has its layers recomputed for the
 * gradient.
 */
export function positionsKeptMax(config: ModelConfig): number {
  return Math.max(1, Math.floor(activationBytesMax / activationBytes(config)));
}

/** Upper bounds of the memory for a gradient, beyond weights, gradients and moments. */
export interface PassMemory {
  /** Tokens of a micro-batch, those that fill up its rows included. */
  readonly positions: number;
  readonly activationBytes: number;
  readonly logitBytes: number;
}

/** Copies of the logits that a loss and its gradient hold at once. */
const logitCopies = 6;

/** `recomputesEvery`: activations of every so many-th layer are recomputed, one layer at a time; 0 = of none. */
export function passMemory(config: ModelConfig, recomputesEvery = 0): PassMemory {
  const positions = Math.min(trainPositionsMax, positionsKeptMax(config));
  const logits = Math.min(trainLogitsMax, positions * config.vocabularySize);
  return {
    positions,
    activationBytes: positions * keptBytes(config, recomputesEvery),
    logitBytes: logitCopies * floatBytes * logits,
  };
}

/** Bytes kept for each position; a recomputed layer keeps its input. */
function keptBytes(config: ModelConfig, recomputesEvery: number): number {
  const all = activationBytes(config);
  if (recomputesEvery === 0) return all;
  const again = Math.ceil(config.layerCount / recomputesEvery);
  const ofLayer = all / config.layerCount;
  return all - (again - 1) * ofLayer + again * floatBytes * config.hiddenSize;
}
