import { Graph } from '../../onnx/graph.ts';
import type { InferenceSession } from '../../onnx/runtime.ts';
import { floats, openSession, type SessionOptions } from '../../onnx/session.ts';
import { chunkName, chunksPerRun, type Cut, eachInLanes, numbered } from './chunks.ts';

/** The global L2 norm of a gradient: single precision within a chunk, double across them. Not finite when any element is not. */
export class GradientNorm {
  readonly #cut: Cut;
  readonly #options: SessionOptions;
  #session: Promise<InferenceSession> | null = null;

  constructor(cut: Cut, options: SessionOptions) {
    this.#cut = cut;
    this.#options = options;
  }

  async of(gradient: Float32Array): Promise<number> {
    const session = await (this.#session ??= openSession(squaresGraph(), { ...this.#options, threads: 1 }));
    const runs = this.#cut.runsOf(gradient);
    const squares = new Float32Array(runs.length * chunksPerRun);
    await eachInLanes(runs.length, this.#options.threads, async (i) => {
      const fetches = { squares: floats(squares.subarray(i * chunksPerRun, (i + 1) * chunksPerRun), [chunksPerRun]) };
      await session.run(numbered({ gradient: runs[i]! }), fetches);
    });
    return Math.sqrt(squares.reduce((total, square) => total + square, 0));
  }

  async close(): Promise<void> {
    await (await this.#session)?.release();
    this.#session = null;
  }
}

function squaresGraph(): Graph {
  const graph = new Graph();
  const squares = Array.from({ length: chunksPerRun }, (_, i) => {
    const gradient = graph.input(chunkName('gradient', i), 'float32', [`chunk${i}`]);
    return graph.node('ReduceSumSquare', [gradient, graph.integers([0])], {
      attributes: { keepdims: { int: 1 } },
      shape: [1],
    });
  });
  const attributes = { axis: { int: 0 } };
  graph.output('squares', graph.node('Concat', squares, { attributes, shape: [chunksPerRun] }));
  return graph;
}
