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
  #revision = 0;
  /** Capacity is never reserved ahead beyond this. */
  readonly #bytesMax: number;

  constructor(config: ModelConfig, bytesMax = Infinity) {
    this.#config = config;
    this.#bytesMax = bytesMax;
    this.#buffers = emptyBuffers(config);
  }

  /** Changes whenever tensors made before are no longer those of the cache. */
  get revision(): number {
    return this.#revision;
  }

  /** Bytes of memory held. */
  get bytes(): number {
    return this.#buffers.reduce((sum, { byteLength }) => sum + byteLength, 0);
  }

  /** Makes room for rows of `length` positions; the first `keep` rows stay, whatever else it held may be lost. */
  reserve({ rows, length, keep }: { rows: number; length: number; keep: number }): void {
    this.#revision++;
    const wanted = Math.ceil(length / lengthStep) * lengthStep;
    if (keep === 0) this.#length = wanted;
    else if (wanted > this.#length) this.#relayout(rows, wanted, keep);
    const needed = rows * this.#rowSize;
    if (this.#buffers[0]!.length >= needed) return;
    this.#buffers = this.#buffers.map((buffer) => {
      // Doubled when rows are kept: a batch that grows row by row copies each row a constant number of times.
      const ahead = Math.min(2 * buffer.length, Math.floor(this.#bytesMax / (4 * this.#buffers.length)));
      const grown = new Float32Array(keep === 0 ? needed : Math.max(needed, ahead));
      grown.set(buffer.subarray(0, keep * this.#rowSize));
      return grown;
    });
  }

  /** Shrinks to the memory of the first `rows` rows; 0 frees all of it. */
  trim(rows: number): void {
    const needed = rows * this.#rowSize;
    if (this.#buffers[0]!.length <= needed) return;
    this.#revision++;
    this.#buffers = rows === 0 ? emptyBuffers(this.#config) : this.#buffers.map((buffer) => buffer.slice(0, needed));
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

  /** The first positions of a row, [layers, 2, keyValueHeads, positions, headSize], written to memory of that size. */
  readRow(row: number, positions: number, kept: Float32Array): Float32Array {
    this.#eachHead(row, positions, (buffer, start, offset, count) => copy(buffer, start, kept, offset, count));
    return kept;
  }

  /** Writes the first of the `keptPositions` that readRow gave, of this or another cache, to the first of a row. */
  writeRow(row: number, kept: Float32Array, positions: number, keptPositions: number = positions): void {
    this.#eachHead(row, positions, (buffer, start, offset, count) =>
      copy(kept, (offset / positions) * keptPositions, buffer, start, count),
    );
  }

  moveRow(from: number, to: number): void {
    const size = this.#rowSize;
    for (const buffer of this.#buffers) buffer.copyWithin(to * size, from * size, (from + 1) * size);
  }

  /**
   * Visits the pieces of a row's first positions, one per layer, keys or values, and head, with their offset in a kept
   * row.
   */
  #eachHead(
    row: number,
    positions: number,
    visit: (buffer: Float32Array, start: number, offset: number, count: number) => void,
  ): void {
    const { keyValueHeadCount, headSize } = this.#config;
    const count = positions * headSize;
    let offset = 0;
    for (const buffer of this.#buffers) {
      for (let head = 0; head < keyValueHeadCount; head++, offset += count) {
        visit(buffer, row * this.#rowSize + head * this.#length * headSize, offset, count);
      }
    }
  }

  #relayout(rows: number, length: number, keep: number): void {
    const { keyValueHeadCount, headSize } = this.#config;
    const [before, after] = [this.#length * headSize, length * headSize];
    this.#length = length;
    // One by one, so that no more than one of them is there twice.
    this.#buffers = this.#buffers.map((buffer) => {
      const wider = new Float32Array(rows * this.#rowSize);
      for (let head = 0; head < keep * keyValueHeadCount; head++) {
        copy(buffer, head * before, wider, head * after, before);
      }
      return wider;
    });
  }

  get #rowSize(): number {
    return this.#config.keyValueHeadCount * this.#length * this.#config.headSize;
  }
}

function emptyBuffers({ layerCount }: ModelConfig): Float32Array[] {
  return Array.from({ length: 2 * layerCount }, () => new Float32Array(0));
}

/** One by one below this: making two views of memory takes as long. */
const copiedAtOnceMin = 256;

function copy(from: Float32Array, fromStart: number, to: Float32Array, toStart: number, count: number): void {
  if (count < copiedAtOnceMin) for (let i = 0; i < count; i++) to[toStart + i] = from[fromStart + i]!;
  else to.set(from.subarray(fromStart, fromStart + count), toStart);
}
