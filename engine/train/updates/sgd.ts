import type { NamedTensor } from '../../model/safetensors.ts';
import type { Graph } from '../../onnx/graph.ts';
import { add, multiply, subtract } from '../../onnx/operators.ts';
import type { SessionOptions } from '../../onnx/session.ts';
import { chunkGraph, ChunkSession, type Cut } from './chunks.ts';
import { clipOf, scalarTensors, stateOf, type UpdateRule, type WeightUpdate } from './rule.ts';

/** Defaults of prime-rl (configs/trainer.py, SGDConfig). */
const defaultSgd = { momentum: 0.9, nesterov: true };

/** Stochastic gradient descent with momentum (Sutskever et al. 2013) over flat weights. Agrees with torch.optim.SGD, whose weight decay is part of the gradient. */
export class Sgd implements UpdateRule {
  readonly #cut: Cut;
  readonly #session: ChunkSession;
  #momentum: Float32Array;

  constructor(cut: Cut, options: SessionOptions) {
    this.#cut = cut;
    this.#session = new ChunkSession(momentumGraph, options);
    this.#momentum = new Float32Array(cut.length);
  }

  async apply(weights: Float32Array, gradient: Float32Array, update: WeightUpdate): Promise<void> {
    const { momentum = defaultSgd.momentum, nesterov = defaultSgd.nesterov, weightDecay } = update.optimizer;
    const weight = this.#cut.runsOf(weights);
    const buffer = this.#cut.runsOfPacked(this.#momentum);
    await this.#session.run({
      scalars: scalarTensors({
        clip: clipOf(update),
        decay: weightDecay,
        momentum,
        along: nesterov ? 1 : 0,
        ahead: nesterov ? momentum : 1,
        rate: update.learningRate,
      }),
      feeds: { gradient: this.#cut.runsOf(gradient), weight, buffer },
      fetches: { new_weight: weight, new_buffer: buffer },
    });
  }

  state(): Record<'momentum', NamedTensor> {
    return { momentum: { shape: [this.#momentum.length], data: this.#momentum } };
  }

  restore(tensors: ReadonlyMap<string, NamedTensor>): void {
    this.#momentum = stateOf(tensors, 'momentum', this.#cut.length);
  }

  reset(): void {
    this.#momentum.fill(0);
  }

  close(): Promise<void> {
    return this.#session.close();
  }
}

/** Steps of one length along the sign of the gradient (Bernstein et al. 2018, signSGD), with decoupled decay: prime-rl's trainer/sign_sgd.py. It remembers nothing. */
export class SignSgd implements UpdateRule {
  readonly #cut: Cut;
  readonly #session: ChunkSession;

  constructor(cut: Cut, options: SessionOptions) {
    this.#cut = cut;
    this.#session = new ChunkSession(signGraph, options);
  }

  async apply(weights: Float32Array, gradient: Float32Array, update: WeightUpdate): Promise<void> {
    const { learningRate, optimizer } = update;
    const weight = this.#cut.runsOf(weights);
    await this.#session.run({
      scalars: scalarTensors({ decay: learningRate * optimizer.weightDecay, rate: learningRate }),
      feeds: { gradient: this.#cut.runsOf(gradient), weight },
      fetches: { new_weight: weight },
    });
  }

  state(): Record<string, NamedTensor> {
    return {};
  }

  restore(): void {
    // No state.
  }

  reset(): void {
    // No state.
  }

  close(): Promise<void> {
    return this.#session.close();
  }
}

/**
 * The update, with gradient g and clip factor c: d = cg + decay·w, b ← momentum·b + d, w ← w − rate (along·d +
 * ahead·b).
 */
function momentumGraph(): Graph {
  const names = ['clip', 'decay', 'momentum', 'along', 'ahead', 'rate'] as const;
  return chunkGraph(names, ({ vector, output }, scalars) => {
    const weight = vector('weight');
    const gradient = add(multiply(vector('gradient'), scalars.clip), multiply(weight, scalars.decay));
    const buffer = add(multiply(vector('buffer'), scalars.momentum), gradient);
    const step = add(multiply(gradient, scalars.along), multiply(buffer, scalars.ahead));
    output('new_weight', subtract(weight, multiply(step, scalars.rate)));
    output('new_buffer', buffer);
  });
}

/** w ← w − decay·w − rate·sign(g). Clipping changes no sign. */
function signGraph(): Graph {
  return chunkGraph(['decay', 'rate'] as const, ({ vector, output }, scalars) => {
    const [weight, gradient] = [vector('weight'), vector('gradient')];
    const sign = gradient.graph.node('Sign', [gradient], { shape: gradient.shape });
    const decayed = subtract(weight, multiply(weight, scalars.decay));
    output('new_weight', subtract(decayed, multiply(sign, scalars.rate)));
  });
}
