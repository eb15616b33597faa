import { Graph, type Value } from '../../onnx/graph.ts';
import type { InferenceSession, Tensor } from '../../onnx/runtime.ts';
import { floats, openSession, type SessionOptions } from '../../onnx/session.ts';

/** Elementwise graphs over flat arrays, some parts of them at a time. */

/** Most elements of a chunk: its operators' data stays in a core's cache from one to the next. */
const chunkLengthMax = 1 << 15;

/** A run costs about a tenth of a millisecond whatever it computes, so it takes several chunks. */
export const chunksPerRun = 16;

export interface Span {
  readonly offset: number;
  readonly length: number;
}

/** A division of flat arrays into chunks, grouped by run. The chunks of an array are made once and kept. */
export class Cut {
  /** Elements of all chunks. */
  readonly length: number;
  readonly #chunks: readonly Span[];
  readonly #packed: readonly Span[];
  readonly #made = new WeakMap<Float32Array, Tensor[][]>();

  private constructor(chunks: readonly Span[]) {
    this.#chunks = chunks;
    let offset = 0;
    this.#packed = chunks.map(({ length }) => ({ offset: (offset += length) - length, length }));
    this.length = offset;
  }

  /** Cuts whole arrays evenly. The last chunks may be shorter, or empty. */
  static whole(length: number): Cut {
    const runCount = Math.ceil(length / (chunksPerRun * chunkLengthMax));
    const each = Math.ceil(length / (runCount * chunksPerRun));
    return new Cut(
      Array.from({ length: runCount * chunksPerRun }, (_, i) => {
        const offset = Math.min(i * each, length);
        return { offset, length: Math.min(each, length - offset) };
      }),
    );
  }

  /** Cuts some parts of arrays. */
  static of(spans: readonly Span[]): Cut {
    const chunks = spans.flatMap(({ offset, length }) =>
      Array.from({ length: Math.ceil(length / chunkLengthMax) }, (_, i) => {
        const start = i * chunkLengthMax;
        return { offset: offset + start, length: Math.min(chunkLengthMax, length - start) };
      }),
    );
    const missing = -chunks.length & (chunksPerRun - 1);
    return new Cut([...chunks, ...Array.from({ length: missing }, () => ({ offset: 0, length: 0 }))]);
  }

  /** The chunks of an array that holds everything, by run. */
  runsOf(flat: Float32Array): Tensor[][] {
    return this.#runs(flat, this.#chunks);
  }

  /** The chunks of an array that holds them alone, one after the other. */
  runsOfPacked(flat: Float32Array): Tensor[][] {
    return this.#runs(flat, this.#packed);
  }

  #runs(flat: Float32Array, chunks: readonly Span[]): Tensor[][] {
    const made = this.#made.get(flat);
    if (made) return made;
    const tensors = chunks.map(({ offset, length }) => floats(flat.subarray(offset, offset + length), [length]));
    const runs = Array.from({ length: tensors.length / chunksPerRun }, (_, run) =>
      tensors.slice(run * chunksPerRun, (run + 1) * chunksPerRun),
    );
    this.#made.set(flat, runs);
    return runs;
  }
}

interface ChunkPorts {
  readonly vector: (name: string) => Value;
  readonly output: (name: string, value: Value) => void;
}

/** A graph that treats every chunk of a run alike. Scalars are inputs of all of them. */
export function chunkGraph<Name extends string>(
  names: readonly Name[],
  make: (ports: ChunkPorts, scalars: Readonly<Record<Name, Value>>) => void,
): Graph {
  const graph = new Graph();
  const entries = names.map((name) => [name, graph.input(name, 'float32', [])] as const);
  const scalars = Object.fromEntries(entries) as Record<Name, Value>;
  for (let i = 0; i < chunksPerRun; i++) {
    make(
      {
        vector: (name) => graph.input(chunkName(name, i), 'float32', [`chunk${i}`]),
        output: (name, value) => graph.output(chunkName(name, i), value),
      },
      scalars,
    );
  }
  return graph;
}

export function chunkName(name: string, chunk: number): string {
  return `${name}_${chunk}`;
}

/** Chunks of a run under their names in the graph. */
export function numbered(chunks: Readonly<Record<string, readonly Tensor[]>>): Record<string, Tensor> {
  return Object.fromEntries(
    Object.entries(chunks).flatMap(([name, tensors]) => tensors.map((tensor, i) => [chunkName(name, i), tensor])),
  );
}

/** Runs as many at a time as there are threads, each on one thread: an operator on a chunk is too short to be split. */
export async function eachInLanes(count: number, lanes: number, work: (i: number) => Promise<void>): Promise<void> {
  let next = 0;
  const lane = async (): Promise<void> => {
    while (next < count) await work(next++);
  };
  await Promise.all(Array.from({ length: lanes }, lane));
}

interface ChunkWork {
  readonly scalars: Readonly<Record<string, Tensor>>;
  /** Tensors by name, then by run. */
  readonly feeds: Readonly<Record<string, readonly Tensor[][]>>;
  readonly fetches: Readonly<Record<string, readonly Tensor[][]>>;
}

/** A graph over the chunks of a run, compiled when it is first wanted: as many runs at a time as there are threads, each on one. */
export class ChunkSession {
  readonly #build: () => Graph;
  readonly #options: SessionOptions;
  #opened: Promise<InferenceSession> | null = null;

  constructor(build: () => Graph, options: SessionOptions) {
    this.#build = build;
    this.#options = options;
  }

  /** Runs the session once for each of `count`. */
  async each(count: number, work: (session: InferenceSession, i: number) => Promise<unknown>): Promise<void> {
    const session = await (this.#opened ??= openSession(this.#build(), { ...this.#options, threads: 1 }));
    await eachInLanes(count, this.#options.threads, async (i) => void (await work(session, i)));
  }

  /** Executes all runs; fetches are written in place. */
  async run({ scalars, feeds, fetches }: ChunkWork): Promise<void> {
    const count = Object.values(feeds)[0]?.length ?? 0;
    const ofRun = (runs: ChunkWork['feeds'], i: number): Record<string, Tensor> =>
      numbered(Object.fromEntries(Object.entries(runs).map(([name, chunks]) => [name, chunks[i]!])));
    await this.each(count, (session, i) => session.run({ ...scalars, ...ofRun(feeds, i) }, ofRun(fetches, i)));
  }

  async close(): Promise<void> {
    await (await this.#opened)?.release();
    this.#opened = null;
  }
}
