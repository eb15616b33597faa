import { Graph } from '../../onnx/graph.ts';
import { floats, type SessionOptions } from '../../onnx/session.ts';
import { chunkName, ChunkSession, chunksPerRun, type Cut, numbered } from './chunks.ts';

/** The global L2 norm of a gradient: single precision within a chunk, double across them. Not finite when any element is not. */
export class GradientNorm {
  readonly #cut: Cut;
  readonly #session: ChunkSession;

  constructor(cut: Cut, options: SessionOptions) {
    this.#cut = cut;
    this.#session = new ChunkSession(squaresGraph, options);
  }

  async of(gradient: Float32Array): Promise<number> {
    const runs = this.#cut.runsOf(gradient);
    const squares = new Float32Array(runs.length * chunksPerRun);
    await this.#session.each(runs.length, (session, i) => {
      const fetches = { squares: floats(squares.subarray(i * chunksPerRun, (i + 1) * chunksPerRun), [chunksPerRun]) };
      return session.run(numbered({ gradient: runs[i]! }), fetches);
    });
    return Math.sqrt(squares.reduce((total, square) => total + square, 0));
  }

  close(): Promise<void> {
    return this.#session.close();
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
