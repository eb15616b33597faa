import type { ParameterSpec } from '../../model/parameter-layout.ts';
import type { NamedTensor } from '../../model/safetensors.ts';
import { Graph, type Value } from '../../onnx/graph.ts';
import { elementTypes } from '../../onnx/model-proto.ts';
import { add, matmul, multiply, subtract, sum, transpose } from '../../onnx/operators.ts';
import type { InferenceSession } from '../../onnx/runtime.ts';
import { floats, openSession, type SessionOptions } from '../../onnx/session.ts';
import { AdamW } from './adamw.ts';
import { Cut, eachInLanes } from './chunks.ts';
import { clipOf, scalarTensors, stateOf, type UpdateRule, type WeightUpdate } from './rule.ts';

/** prime-rl's default (configs/trainer.py, MuonConfig). */
export const defaultMuonMomentum = 0.95;

/**
 * Muon (Jordan et al. 2024) as in prime-rl (trainer/optim, dion's muon.py): a matrix moves along its momentum, made
 * orthogonal by five steps of Newton–Schulz. The rate gives a step the size of AdamW's (Liu et al. 2025, Muon is
 * scalable for LLM training, §2.2). The embedding, the output layer, norms and biases use AdamW. Matrices of adapters
 * count as matrices. Like there, inputs and results of Newton–Schulz are rounded to bfloat16 after every operation.
 */
export class Muon implements UpdateRule {
  readonly #options: SessionOptions;
  readonly #matrices: readonly Matrix[];
  readonly #others: AdamW;
  readonly #sessions = new Map<string, Promise<InferenceSession>>();
  #momentum: Float32Array;

  constructor(layout: readonly ParameterSpec[], options: SessionOptions) {
    this.#options = options;
    let packed = 0;
    this.#matrices = layout
      .filter(isMatrix)
      .map((spec) => ({ ...spec, packed: (packed += spec.length) - spec.length }));
    this.#others = new AdamW(Cut.of(layout.filter((spec) => !isMatrix(spec))), options);
    this.#momentum = new Float32Array(packed);
  }

  async apply(weights: Float32Array, gradient: Float32Array, update: WeightUpdate, step: number): Promise<void> {
    await this.#others.apply(weights, gradient, update, step);
    const { momentum = defaultMuonMomentum, epsilon, weightDecay } = update.optimizer;
    const { learningRate } = update;
    const common = { clip: clipOf(update), momentum, epsilon, keep: 1 - learningRate * weightDecay };
    await eachInLanes(this.#matrices.length, this.#options.threads, async (i) => {
      const { shape, offset, length, packed } = this.#matrices[i]!;
      const session = await this.#sessionOf(shape);
      const weight = floats(weights.subarray(offset, offset + length), shape);
      const buffer = floats(this.#momentum.subarray(packed, packed + length), shape);
      const rate = learningRate * stepLength * Math.sqrt(Math.max(...shape));
      await session.run(
        {
          ...scalarTensors({ ...common, rate }),
          weight,
          buffer,
          gradient: floats(gradient.subarray(offset, offset + length), shape),
        },
        { new_weight: weight, new_buffer: buffer },
      );
    });
  }

  state(): Record<string, NamedTensor> {
    return { ...this.#others.state(), momentum: { shape: [this.#momentum.length], data: this.#momentum } };
  }

  restore(tensors: ReadonlyMap<string, NamedTensor>): void {
    const momentum = stateOf(tensors, 'momentum', this.#momentum.length);
    this.#others.restore(tensors);
    this.#momentum = momentum;
  }

  reset(): void {
    this.#others.reset();
    this.#momentum.fill(0);
  }

  async close(): Promise<void> {
    await this.#others.close();
    await Promise.all([...this.#sessions.values()].map(async (session) => (await session).release()));
    this.#sessions.clear();
  }

  /** Matrices of one shape share a graph. On one thread each, so the bits do not depend on how many there are. */
  #sessionOf(shape: readonly number[]): Promise<InferenceSession> {
    const key = shape.join();
    const open = this.#sessions.get(key) ?? openSession(matrixGraph(shape), { ...this.#options, threads: 1 });
    this.#sessions.set(key, open);
    return open;
  }
}

interface Matrix extends ParameterSpec {
  /** Offset of its momentum in the array of all matrices. */
  readonly packed: number;
}

/** prime-rl's rule, by name and number of axes. */
function isMatrix({ name, shape }: ParameterSpec): boolean {
  return shape.length >= 2 && !name.includes('lm_head') && !name.includes('embed_tokens');
}

/** Root mean square of a step over the rate, about that of AdamW: rate · 0.2 · √max(rows, columns). */
const stepLength = 0.2;

/** Coefficients of the five steps: x ← a x + (b A + c A²) x with A = x xᵀ. */
const newtonSchulz = [
  [4.0848, -6.8946, 2.927],
  [3.9505, -6.3029, 2.6377],
  [3.7418, -5.5913, 2.3037],
  [2.8769, -3.1427, 1.2046],
  [2.8366, -3.0525, 1.2012],
] as const;

/** The update, with gradient g and clip factor c: b ← momentum·b + cg, w ← keep·w − rate·orthogonal(b). */
function matrixGraph([rows, columns]: readonly number[]): Graph {
  const graph = new Graph();
  const scalar = (name: string): Value => graph.input(name, 'float32', []);
  const matrix = (name: string): Value => graph.input(name, 'float32', [rows!, columns!]);
  const [clip, momentum, epsilon, keep, rate] = [
    scalar('clip'),
    scalar('momentum'),
    scalar('epsilon'),
    scalar('keep'),
    scalar('rate'),
  ];
  const buffer = add(multiply(matrix('buffer'), momentum), multiply(matrix('gradient'), clip));
  const isTall = rows! > columns!;
  const turned = (x: Value): Value => (isTall ? transpose(x, [1, 0]) : x);
  const direction = turned(orthogonal(turned(brainFloats(buffer)), epsilon));
  const step = brainFloats(multiply(direction, rate));
  graph.output('new_weight', subtract(multiply(matrix('weight'), keep), step));
  graph.output('new_buffer', buffer);
  return graph;
}

/** Roughly the nearest matrix with orthonormal rows; x is wide, or square. */
function orthogonal(given: Value, epsilon: Value): Value {
  const { graph } = given;
  const squares = sum(multiply(given, given), [0, 1], { keep: true });
  const norm = brainFloats(graph.node('Sqrt', [squares], { shape: squares.shape }));
  const divisor = brainFloats(add(norm, epsilon));
  let x = brainFloats(graph.node('Div', [given, divisor], { shape: given.shape }));
  for (const [a, b, c] of newtonSchulz) {
    const square = brainFloats(matmul(x, x, { transposeB: true }));
    const fourth = brainFloats(matmul(square, square));
    const factor = brainFloats(add(brainFloats(multiply(square, b)), brainFloats(multiply(fourth, c))));
    x = brainFloats(add(brainFloats(multiply(x, a)), brainFloats(matmul(factor, x))));
  }
  return x;
}

/** Rounds to bfloat16; the result stays float32. */
function brainFloats(x: Value): Value {
  const { graph, shape } = x;
  const short = graph.node('Cast', [x], {
    attributes: { to: { int: elementTypes.bfloat16 } },
    shape,
    type: 'bfloat16',
  });
  return graph.node('Cast', [short], { attributes: { to: { int: elementTypes.float32 } }, shape, type: 'float32' });
}
