import type { Tensor } from 'onnxruntime-node';
import type { ModelConfig } from '../model/config.ts';
import { floats } from '../onnx/session.ts';
import { cacheNames } from './decode-graph.ts';

/**
 * Keys and values of a batch, [rows, keyValueHeads, length, headSize] per layer, in memory that is kept between
 * batches. ONNX Runtime gets the same memory as input and output, so a step appends in place.
 */
export class KeyValueCache {
  readonly #config: ModelConfig;
  /** Two per layer: keys, then values. */
  readonly #buffers: Float32Array[];
  #rows = 0;
  #length = 0;

  constructor(config: ModelConfig) {
    this.#config = config;
    this.#buffers = Array.from({ length: 2 * config.layerCount }, () => new Float32Array(0));
  }

  /** Makes room; what the cache held is lost. `length` counts positions. */
  resize(rows: number, length: number): void {
    this.#rows = rows;
    this.#length = length;
    const needed = rows * this.#rowSize;
    this.#buffers.forEach((buffer, i) => {
      if (buffer.length < needed) this.#buffers[i] = new Float32Array(needed);
    });
  }

  /** Feeds and fetches for the first `rows` rows. */
  tensors(rows: number): { feeds: Record<string, Tensor>; fetches: Record<string, Tensor> } {
    const { keyValueHeadCount, headSize } = this.#config;
    const shape = [rows, keyValueHeadCount, this.#length, headSize];
    const feeds: Record<string, Tensor> = {};
    const fetches: Record<string, Tensor> = {};
    this.#buffers.forEach((buffer, i) => {
      const tensor = floats(buffer.subarray(0, rows * this.#rowSize), shape);
      const names = cacheNames(i >> 1);
      feeds[i % 2 === 0 ? names.pastKey : names.pastValue] = tensor;
      fetches[i % 2 === 0 ? names.key : names.value] = tensor;
    });
    return { feeds, fetches };
  }

  /** Copies the first `positions` positions of a row of another cache into one of this. */
  copyRow(from: KeyValueCache, fromRow: number, toRow: number, positions: number): void {
    const { keyValueHeadCount, headSize } = this.#config;
    const count = positions * headSize;
    for (let i = 0; i < this.#buffers.length; i++) {
      const source = from.#buffers[i]!;
      const target = this.#buffers[i]!;
      for (let head = 0; head < keyValueHeadCount; head++) {
        const start = fromRow * from.#rowSize + head * from.#length * headSize;
        target.set(source.subarray(start, start + count), toRow * this.#rowSize + head * this.#length * headSize);
      }
    }
  }

  /** Row `to` becomes what row `from` is. */
  moveRow(from: number, to: number): void {
    const size = this.#rowSize;
    for (const buffer of this.#buffers) buffer.copyWithin(to * size, from * size, (from + 1) * size);
  }

  get rows(): number {
    return this.#rows;
  }

  get #rowSize(): number {
    return this.#config.keyValueHeadCount * this.#length * this.#config.headSize;
  }
}

/** Bytes of keys and values that one row of `length` positions takes. */
export function rowBytes(config: ModelConfig, length: number): number {
  return 2 * 4 * config.layerCount * config.keyValueHeadCount * config.headSize * length;
}
