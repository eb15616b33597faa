import { RatchetError } from '../../core/errors.ts';
import type { OptimizerSpec } from '../../config/run-spec.ts';
import { decodeSafetensors, encodeSafetensors, type NamedTensor } from '../model/safetensors.ts';
import { Graph, type Value } from '../onnx/graph.ts';
import { add, multiply, subtract } from '../onnx/operators.ts';
import type { InferenceSession, Tensor } from '../onnx/runtime.ts';
import { floats, floatScalar, openSession, type SessionOptions } from '../onnx/session.ts';

/** Added to the norm when clipping, as torch.nn.utils.clip_grad_norm_ does. */
const clipEpsilon = 1e-6;

/** Elements of a chunk at most: what its operators read and write stays in a core's cache from one to the next. */
const chunkLengthMax = 1 << 15;

/** A run costs about a tenth of a millisecond whatever it computes, so it takes several chunks. */
const chunksPerRun = 16;

/**
 * AdamW (Loshchilov & Hutter 2019, algorithm 2) over flat weights, with the gradient clipped by its global norm, as
 * graphs over some chunks at a time. Agrees with torch.optim.AdamW; weight decay applies to every parameter, as there, unless spans are spared.
 * Nothing crosses from element to element but in the norm, so the bits depend on the gradient alone.
 */
export class AdamW {
  readonly #options: SessionOptions;
  readonly #chunksOf = new WeakMap<Float32Array, Tensor[][]>();
  #sessions: { update: Promise<InferenceSession>; squares: Promise<InferenceSession> } | null = null;
  #firstMoment: Float32Array;
  #secondMoment: Float32Array;
  /** Steps taken since the state was fresh. */
  #step = 0;

  constructor(parameterCount: number, options: SessionOptions) {
    this.#options = options;
    this.#firstMoment = new Float32Array(parameterCount);
    this.#secondMoment = new Float32Array(parameterCount);
  }

  reset(): void {
    this.#firstMoment.fill(0);
    this.#secondMoment.fill(0);
    this.#step = 0;
  }

  /** L2 norm: single precision within a chunk, double across them. Not finite when any element is not. */
  async globalNorm(gradient: Float32Array): Promise<number> {
    const session = await this.#opened().squares;
    const runs = this.#chunks(gradient);
    const squares = new Float32Array(runs.length * chunksPerRun);
    await this.#eachRun(runs.length, async (i) => {
      const fetches = { squares: floats(squares.subarray(i * chunksPerRun, (i + 1) * chunksPerRun), [chunksPerRun]) };
      await session.run(numbered({ gradient: runs[i]! }), fetches);
    });
    return Math.sqrt(squares.reduce((total, square) => total + square, 0));
  }

  /** Changes the weights in place. `norm` is the gradient's global norm. */
  async apply(weights: Float32Array, gradient: Float32Array, update: UpdateOptions): Promise<void> {
    const session = await this.#opened().update;
    this.#step++;
    const values = coefficients(update, this.#step);
    const scalars = Object.fromEntries(Object.entries(values).map(([name, value]) => [name, floatScalar(value)]));
    // At a rate of 0, or too small for single precision, the weights stay, and such a step is not divided by.
    const isStill = !Number.isFinite(Math.fround(values.root_scale));
    const giveBack = isStill ? () => undefined : sparing(weights, update);
    const [ws, gs] = [this.#chunks(weights), this.#chunks(gradient)];
    const [firsts, seconds] = [this.#chunks(this.#firstMoment), this.#chunks(this.#secondMoment)];
    await this.#eachRun(ws.length, async (i) => {
      const [weight, first, second] = [ws[i]!, firsts[i]!, seconds[i]!];
      const moments = { new_first: first, new_second: second };
      const fetches = isStill ? moments : { ...moments, new_weight: weight };
      await session.run({ ...scalars, ...numbered({ gradient: gs[i]!, weight, first, second }) }, numbered(fetches));
    });
    giveBack();
  }

  async close(): Promise<void> {
    if (this.#sessions)
      await Promise.all(Object.values(this.#sessions).map(async (session) => (await session).release()));
    this.#sessions = null;
  }

  #opened(): { update: Promise<InferenceSession>; squares: Promise<InferenceSession> } {
    return (this.#sessions ??= {
      update: openSession(updateGraph(), { ...this.#options, threads: 1 }),
      squares: openSession(squaresGraph(), { ...this.#options, threads: 1 }),
    });
  }

  /** As many runs at a time as there are threads, each on one: an operator on a chunk is too short to be shared. */
  async #eachRun(count: number, work: (run: number) => Promise<void>): Promise<void> {
    let next = 0;
    const lane = async (): Promise<void> => {
      while (next < count) await work(next++);
    };
    await Promise.all(Array.from({ length: this.#options.threads }, lane));
  }

  /** Tensors over the parts of a flat array by run, made once. The last ones may be shorter, or empty. */
  #chunks(flat: Float32Array): Tensor[][] {
    const made = this.#chunksOf.get(flat);
    if (made) return made;
    const runCount = Math.ceil(flat.length / (chunksPerRun * chunkLengthMax));
    const length = Math.ceil(flat.length / (runCount * chunksPerRun));
    const chunk = (i: number): Tensor => {
      const part = flat.subarray(i * length, (i + 1) * length);
      return floats(part, [part.length]);
    };
    const runs = Array.from({ length: runCount }, (_, run) =>
      Array.from({ length: chunksPerRun }, (__, i) => chunk(run * chunksPerRun + i)),
    );
    this.#chunksOf.set(flat, runs);
    return runs;
  }

  save(): Uint8Array {
    return encodeSafetensors({
      first_moment: { shape: [this.#firstMoment.length], data: this.#firstMoment },
      second_moment: { shape: [this.#secondMoment.length], data: this.#secondMoment },
      step: { shape: [1], data: BigInt64Array.of(BigInt(this.#step)) },
    });
  }

  restore(state: Uint8Array): void {
    const { tensors } = decodeSafetensors(state, 'The optimizer state');
    const step = tensors.get('step')?.data;
    if (!(step instanceof BigInt64Array) || step[0] === undefined || step[0] < 0n) throw damaged('a step count');
    const length = this.#firstMoment.length;
    const first = moment(tensors, 'first_moment', length);
    const second = moment(tensors, 'second_moment', length);
    this.#firstMoment = first;
    this.#secondMoment = second;
    this.#step = Number(step[0]);
  }
}

interface UpdateOptions {
  /** The gradient's global norm. */
  readonly norm: number;
  readonly learningRate: number;
  readonly optimizer: OptimizerSpec;
  /** Parts of the weights that do not decay. */
  readonly spared?: readonly Span[];
}

interface Span {
  readonly offset: number;
  readonly length: number;
}

/** Remembers what must not decay; what it returns gives back what decay took of it, to the last rounding. */
function sparing(weights: Float32Array, { spared = [], learningRate, optimizer }: UpdateOptions): () => void {
  const taken = learningRate * optimizer.weightDecay;
  if (taken === 0 || spared.length === 0) return () => undefined;
  const before = spared.map(({ offset, length }) => weights.slice(offset, offset + length));
  return () => {
    for (const [i, { offset }] of spared.entries()) {
      before[i]!.forEach((weight, at) => (weights[offset + at] = weights[offset + at]! + taken * weight));
    }
  };
}

/** Scalars of one update, in double precision until they are fed; `updateGraph` says what they are for. */
function coefficients({ norm, learningRate, optimizer }: UpdateOptions, step: number) {
  const { beta1, beta2, epsilon, weightDecay, maxGradNorm } = optimizer;
  const clip = Math.min(1, maxGradNorm / (norm + clipEpsilon));
  const stepSize = learningRate / (1 - beta1 ** step);
  return {
    beta1,
    first_gain: clip * (1 - beta1),
    beta2,
    second_gain: clip * Math.sqrt(1 - beta2),
    keep: 1 - learningRate * weightDecay,
    root_scale: 1 / (Math.sqrt(1 - beta2 ** step) * stepSize),
    root_offset: epsilon / stepSize,
  };
}

/**
 * With g the gradient, c the clip factor and s the step size over its bias correction: m ← β₁m + c(1 − β₁)g,
 * v ← β₂v + (c√(1 − β₂) g)², w ← keep·w − m / (√v · 1/(s√(1 − β₂ᵗ)) + ε/s).
 */
function updateGraph(): Graph {
  const graph = new Graph();
  const scalar = (name: string): Value => graph.input(name, 'float32', []);
  const [beta1, firstGain, beta2, secondGain] = [
    scalar('beta1'),
    scalar('first_gain'),
    scalar('beta2'),
    scalar('second_gain'),
  ];
  const [keep, rootScale, rootOffset] = [scalar('keep'), scalar('root_scale'), scalar('root_offset')];
  for (let i = 0; i < chunksPerRun; i++) {
    const vector = (name: string): Value => graph.input(chunkName(name, i), 'float32', [`chunk${i}`]);
    const gradient = vector('gradient');
    const first = add(multiply(vector('first'), beta1), multiply(gradient, firstGain));
    const scaled = multiply(gradient, secondGain);
    const second = add(multiply(vector('second'), beta2), multiply(scaled, scaled));
    const root = graph.node('Sqrt', [second], { shape: second.shape });
    const denominator = add(multiply(root, rootScale), rootOffset);
    const change = graph.node('Div', [first, denominator], { shape: first.shape });
    graph.output(chunkName('new_weight', i), subtract(multiply(vector('weight'), keep), change));
    graph.output(chunkName('new_first', i), first);
    graph.output(chunkName('new_second', i), second);
  }
  return graph;
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

function chunkName(name: string, chunk: number): string {
  return `${name}_${chunk}`;
}

/** Chunks of a run under their names in the graph. */
function numbered(chunks: Readonly<Record<string, readonly Tensor[]>>): Record<string, Tensor> {
  return Object.fromEntries(
    Object.entries(chunks).flatMap(([name, tensors]) => tensors.map((tensor, i) => [chunkName(name, i), tensor])),
  );
}

function moment(tensors: ReadonlyMap<string, NamedTensor>, name: string, length: number): Float32Array {
  const data = tensors.get(name)?.data;
  if (!(data instanceof Float32Array) || data.length !== length) throw damaged(`${name} with ${length} floats`);
  return data;
}

function damaged(expected: string): RatchetError {
  return new RatchetError(
    'CheckpointDamaged',
    `The optimizer state does not belong to this model: expected ${expected}. Restore it from the same checkpoint.`,
  );
}
