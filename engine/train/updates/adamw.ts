import type { NamedTensor } from '../../model/safetensors.ts';
import type { Graph } from '../../onnx/graph.ts';
import { add, multiply, subtract } from '../../onnx/operators.ts';
import type { SessionOptions } from '../../onnx/session.ts';
import { chunkGraph, ChunkSession, type Cut } from './chunks.ts';
import { clipOf, scalarTensors, stateOf, type UpdateRule, type WeightUpdate } from './rule.ts';

/**
 * AdamW (Loshchilov & Hutter 2019, algorithm 2) over flat weights, as graphs over some chunks at a time. Agrees with torch.optim.AdamW;
 * weight decay applies to every parameter, as there, unless spans are spared. Nothing crosses from element to element.
 */
export class AdamW implements UpdateRule {
  readonly #cut: Cut;
  readonly #session: ChunkSession;
  #firstMoment: Float32Array;
  #secondMoment: Float32Array;

  constructor(cut: Cut, options: SessionOptions) {
    this.#cut = cut;
    this.#session = new ChunkSession(updateGraph, options);
    this.#firstMoment = new Float32Array(cut.length);
    this.#secondMoment = new Float32Array(cut.length);
  }

  async apply(weights: Float32Array, gradient: Float32Array, update: WeightUpdate, step: number): Promise<void> {
    const values = coefficients(update, step);
    // At a rate of 0, or too small for single precision, the weights stay, and such a step is not divided by.
    const isStill = !Number.isFinite(Math.fround(values.root_scale));
    const giveBack = isStill ? () => undefined : sparing(weights, update);
    const cut = this.#cut;
    const [weight, first, second] = [
      cut.runsOf(weights),
      cut.runsOfPacked(this.#firstMoment),
      cut.runsOfPacked(this.#secondMoment),
    ];
    const moments = { new_first: first, new_second: second };
    await this.#session.run({
      scalars: scalarTensors(values),
      feeds: { gradient: cut.runsOf(gradient), weight, first, second },
      fetches: isStill ? moments : { ...moments, new_weight: weight },
    });
    giveBack();
  }

  state(): Record<'first_moment' | 'second_moment', NamedTensor> {
    return {
      first_moment: { shape: [this.#firstMoment.length], data: this.#firstMoment },
      second_moment: { shape: [this.#secondMoment.length], data: this.#secondMoment },
    };
  }

  restore(tensors: ReadonlyMap<string, NamedTensor>): void {
    const first = stateOf(tensors, 'first_moment', this.#cut.length);
    const second = stateOf(tensors, 'second_moment', this.#cut.length);
    this.#firstMoment = first;
    this.#secondMoment = second;
  }

  reset(): void {
    this.#firstMoment.fill(0);
    this.#secondMoment.fill(0);
  }

  close(): Promise<void> {
    return this.#session.close();
  }
}

/** Saves weights that must not decay; the returned function reverts their decay, up to rounding. */
function sparing(weights: Float32Array, { spared = [], learningRate, optimizer }: WeightUpdate): () => void {
  const taken = learningRate * optimizer.weightDecay;
  if (taken === 0 || spared.length === 0) return () => undefined;
  const before = spared.map(({ offset, length }) => weights.slice(offset, offset + length));
  return () => {
    for (const [i, { offset }] of spared.entries()) {
      before[i]!.forEach((weight, at) => (weights[offset + at] = weights[offset + at]! + taken * weight));
    }
  };
}

const scalarNames = [
  'beta1',
  'first_gain',
  'beta2',
  'second_gain',
  'keep',
  'root_scale',
  'root_offset',
] as const satisfies (keyof ReturnType<typeof coefficients>)[];

/** Scalars of one update, in double precision until they are fed; formulas: `updateGraph`. */
function coefficients(update: WeightUpdate, step: number) {
  const { learningRate, optimizer } = update;
  const { beta1, beta2, epsilon, weightDecay } = optimizer;
  const clip = clipOf(update);
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
 * The update, with gradient g, clip factor c, and s the step size over its bias correction: m ← β₁m + c(1 − β₁)g, v ←
 * β₂v + (c√(1 − β₂) g)², w ← keep·w − m / (√v · 1/(s√(1 − β₂ᵗ)) + ε/s).
 */
function updateGraph(): Graph {
  return chunkGraph(scalarNames, ({ vector, output }, scalars) => {
    const gradient = vector('gradient');
    const first = add(multiply(vector('first'), scalars.beta1), multiply(gradient, scalars.first_gain));
    const scaled = multiply(gradient, scalars.second_gain);
    const second = add(multiply(vector('second'), scalars.beta2), multiply(scaled, scaled));
    const root = second.graph.node('Sqrt', [second], { shape: second.shape });
    const denominator = add(multiply(root, scalars.root_scale), scalars.root_offset);
    const change = first.graph.node('Div', [first, denominator], { shape: first.shape });
    output('new_weight', subtract(multiply(vector('weight'), scalars.keep), change));
    output('new_first', first);
    output('new_second', second);
  });
}
