import { availableParallelism, loadavg } from 'node:os';
import type { Graph } from './graph.ts';
import { InferenceSession, Tensor, type Tensors } from './runtime.ts';

export type Provider = 'cpu' | 'cuda';

export interface SessionOptions {
  /** Intra-op threads. 1 = the bits do not depend on the batch's shape or the machine's load. */
  readonly threads: number;
  /** Device of the graphs; cpu by default. */
  readonly provider?: Provider;
  /**
   * Whether a second run of the same shapes has its memory in one piece: a little faster for small runs. The pieces of
   * the first run stay as well, so large runs take twice the memory. On by default.
   */
  readonly plansMemory?: boolean;
}

export interface Constants {
  readonly tensors: Tensors;
  /** The caller keeps them in memory unchanged while the session is open, so that a CPU need not copy them. Off unless given. */
  readonly stay?: boolean;
}

/**
 * Compiles a graph. Weights are inputs, so a session is small and serves every policy version. Weights that stay may be
 * passed as `constants`, which a GPU then keeps instead of receiving them for every run.
 */
export async function openSession(
  graph: Graph,
  { threads, provider = 'cpu', plansMemory = true }: SessionOptions,
  { tensors: constants, stay = false }: Constants = { tensors: {} },
): Promise<InferenceSession> {
  const file = graph.encode(new Set(Object.keys(constants)));
  const { inputNames, outputNames } = graph;
  const spins = !isBusy(loadavg()[0]!, availableParallelism());
  return InferenceSession.create(
    { file, inputNames, outputNames, constants, borrowsConstants: stay && provider === 'cpu' },
    { threads, provider, plansMemory, spins },
  );
}

/**
 * Whether more than half of the processors were busy in the last minute (load average; Windows reports none). A thread
 * that spins while it waits for the others of its operator is faster on an idle machine. On a busy one it takes the
 * processor that the others wait for: two threads took twice the CPU time, and longer. No bit depends on it.
 */
export function isBusy(load: number, processors: number): boolean {
  return load > processors / 2;
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
