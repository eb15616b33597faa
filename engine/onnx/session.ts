import type { Graph } from './graph.ts';
import { InferenceSession, Tensor } from './runtime.ts';

export interface SessionOptions {
  /** Intra-op threads. 1 = the bits do not depend on the batch's shape or the machine's load. */
  readonly threads: number;
  /** Where graphs are computed; cpu unless given. */
  readonly provider?: 'cpu' | 'cuda';
}

/** Compiles a graph. Weights are inputs, so a session is small and serves every policy version. */
export async function openSession(
  graph: Graph,
  { threads, provider = 'cpu' }: SessionOptions,
): Promise<InferenceSession> {
  const { inputNames, outputNames } = graph;
  return InferenceSession.create({ file: graph.encode(), inputNames, outputNames }, { threads, provider });
}

export function floats(data: Float32Array, shape: readonly number[]): Tensor {
  return new Tensor('float32', data, shape);
}

export function floatScalar(value: number): Tensor {
  return new Tensor('float32', Float32Array.of(value), []);
}

export function longs(data: BigInt64Array, shape: readonly number[]): Tensor {
  return new Tensor('int64', data, shape);
}

export function ints(data: Int32Array, shape: readonly number[]): Tensor {
  return new Tensor('int32', data, shape);
}
