import { RatchetError } from '../../core/errors.ts';
import type { OptimizerSpec } from '../../core/spec/run-spec.ts';
import { decodeSafetensors, encodeSafetensors, type NamedTensor } from '../model/safetensors.ts';

/** Added to the norm when clipping, as torch.nn.utils.clip_grad_norm_ does. */
const clipEpsilon = 1e-6;

/**
 * AdamW (Loshchilov & Hutter 2019, algorithm 2) over the flat weights, with the gradient clipped by its global norm.
 * Agrees with torch.optim.AdamW; weight decay applies to every parameter, as there. One pass in a fixed order: the
 * same gradients give the same bits.
 */
export class AdamW {
  #firstMoment: Float32Array;
  #secondMoment: Float32Array;
  /** Steps taken since the state was fresh. */
  #step = 0;

  constructor(parameterCount: number) {
    this.#firstMoment = new Float32Array(parameterCount);
    this.#secondMoment = new Float32Array(parameterCount);
  }

  reset(): void {
    this.#firstMoment.fill(0);
    this.#secondMoment.fill(0);
    this.#step = 0;
  }

  /** Changes the weights in place. `norm` is the gradient's global norm. */
  apply(weights: Float32Array, gradient: Float32Array, norm: number, learningRate: number, spec: OptimizerSpec): void {
    const { beta1, beta2, epsilon, weightDecay, maxGradNorm } = spec;
    this.#step++;
    const scale = Math.min(1, maxGradNorm / (norm + clipEpsilon));
    const stepSize = learningRate / (1 - beta1 ** this.#step);
    const inverseCorrection = 1 / Math.sqrt(1 - beta2 ** this.#step);
    const decay = 1 - learningRate * weightDecay;
    const firstGain = (1 - beta1) * scale;
    const secondGain = (1 - beta2) * scale * scale;
    const first = this.#firstMoment;
    const second = this.#secondMoment;
    for (let i = 0; i < weights.length; i++) {
      const g = gradient[i]!;
      const m = first[i]! * beta1 + g * firstGain;
      const v = second[i]! * beta2 + g * g * secondGain;
      first[i] = m;
      second[i] = v;
      weights[i] = weights[i]! * decay - (stepSize * m) / (Math.sqrt(v) * inverseCorrection + epsilon);
    }
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

/** L2 norm, summed in double precision. Not finite when any element is not. */
export function globalNorm(gradient: Float32Array): number {
  let total = 0;
  for (let i = 0; i < gradient.length; i++) total += gradient[i]! * gradient[i]!;
  return Math.sqrt(total);
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
