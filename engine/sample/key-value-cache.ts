import type { Tensor } from '../onnx/runtime.ts';
import type { ModelConfig } from '../model/config.ts';
import { floats } from '../onnx/session.ts';
import { cacheNames } from './decode-graph.ts';

/** Lengths are rounded up to this, so that rows a little longer than the last do not move everything. */
const lengthStep = 16;

/**
 * Keys and values of a batch, [rows, keyValueHeads, length, headSize] per layer, in memory that is kept between
 * batches. ONNX Runtime gets the same memory as input and output, so a step appends in place.
 */
export class KeyValueCache {
  readonly #config: ModelConfig;
  /** Two per layer: keys, then values. */
  #buffers: Float32Array[];
  /** Positions per row. */
  #length = lengthStep;

  constructor(config: ModelConfig) {
    this.#config = config;
    this.#buffers = Array.from({ length: 2 * config.layerCount }, () => new Float32Array(0));
  }

  /** Makes room for rows of `length` positions; the first `keep` rows stay, whatever else it held may be lost. */
  reserve({ rows, length, keep }: { rows: number; length: number; keep: number }): void {
    const wanted = Math.ceil(length / lengthStep) * lengthStep;
    if (keep === 0) this.#length = wanted;
    else if (wanted > this.#length) this.#relayout(rows, wanted, keep);
    const needed = rows * this.#rowSize;
    if (this.#buffers[0]!.length >= needed) return;
    this.#buffers = this.#buffers.map((buffer) => {
      // Doubled when rows are kept: a batch that grows row by row copies each row a constant number of times.
      const grown = new Float32Array(keep === 0 ? needed : Math.max(needed, 2 * buffer.length));
      grown.set(buffer.subarray(0, keep * this.#rowSize));
      return grown;
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

  /** Copies the first positions of a row of another cache into one of this. */
  copyRow(source: KeyValueCache, { from, to, positions }: { from: number; to: number; positions: number }): void {
    const { keyValueHeadCount, headSize } = this.#config;
    const count = positions * headSize;
    for (let i = 0; i < this.#buffers.length; i++) {
      const sourceBuffer = source.#buffers[i]!;
      const target = this.#buffers[i]!;
      for (let head = 0; head < keyValueHeadCount; head++) {
        const start = from * source.#rowSize + head * source.#length * headSize;
        target.set(sourceBuffer.subarray(start, start + count), to * this.#rowSize + head * this.#length * headSize);
      }
    }
  }

  /** Row `to` becomes what row `from` is. */
  moveRow(from: number, to: number): void {
    const size = this.#rowSize;
    for (const buffer of this.#buffers) buffer.copyWithin(to * size, from * size, (from + 1) * size);
  }

  #relayout(rows: number, length: number, keep: number): void {
    const old = new KeyValueCache(this.#config);
    old.#buffers = this.#buffers;
    old.#length = this.#length;
    this.#length = length;
    this.#buffers = old.#buffers.map(() => new Float32Array(rows * this.#rowSize));
    for (let row = 0; row < keep; row++) this.copyRow(old, { from: row, to: row, positions: old.#length });
  }

  get #rowSize(): number {
    return this.#config.keyValueHeadCount * this.#length * this.#config.headSize;
  }
}

/** Bytes of keys and values that one row of `length` positions takes. */
export function rowBytes(config: ModelConfig, length: number): number {
  return 2 * 4 * config.layerCount * config.keyValueHeadCount * config.headSize * length;
}
