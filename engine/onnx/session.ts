import { InferenceSession, Tensor } from './runtime.ts';
import type { Graph } from './graph.ts';

export interface SessionOptions {
  /** Intra-op threads. 1 = the bits do not depend on the batch's shape or the machine's load. */
  readonly threads: number;
}

/** Compiles a graph for the CPU. Weights are inputs, so a session is small and serves every policy version. */
export async function openSession(graph: Graph, { threads }: SessionOptions): Promise<InferenceSession> {
  return InferenceSession.create(graph.encode(), {
    executionProviders: ['cpu'],
    intraOpNumThreads: threads,
    interOpNumThreads: 1,
    executionMode: 'sequential',
    graphOptimizationLevel: 'all',
    logSeverityLevel: 3,
  });
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
