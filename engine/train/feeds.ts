import type { TrainBatch, TrainSample } from '../../core/rl/batch.ts';
import { RatchetError } from '../../core/errors.ts';
import { floats, floatScalar, ints, longs } from '../onnx/session.ts';
import type { Tensor } from '../onnx/runtime.ts';
import { type Aggregation, aggregationOf } from './aggregate.ts';
import { gather, type MaskedSample, type MicroBatch, requireAligned } from './pack.ts';
import type { TrainOptions } from './types.ts';

/** What the loss of a micro-batch is computed from, as inputs of a train graph. */
export type LossFeeds = (micro: MicroBatch) => Record<string, Tensor>;

/**
 * Largest weight of a token drawn from a modified distribution. Truncated importance sampling (Ionides 2008); the bound
 * is that of Yao et al. 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL Training.
 */
export const samplingWeightMax = 2;

export function tokenFeeds(micro: MicroBatch): Record<string, Tensor> {
  return {
    tokens: ints(micro.tokens, [micro.rows.length, micro.width]),
    selected: longs(micro.selected, [micro.selected.length]),
  };
}

export function scoreFeeds(micro: MicroBatch, temperature: number): Record<string, Tensor> {
  return {
    targets: longs(micro.targets, [micro.targets.length]),
    inverse_temperature: floatScalar(1 / temperature),
  };
}

export function supervisedFeeds(samples: readonly MaskedSample[]): LossFeeds {
  const aggregation = aggregationOf(samples, { aggregation: 'token' });
  return (micro) => ({ ...scoreFeeds(micro, 1), ...weightFeeds(micro, samples, aggregation) });
}

export function policyFeeds({ samples }: TrainBatch, options: TrainOptions): LossFeeds {
  const { loss, referenceLogprobs, temperature, klBeta } = options;
  const aggregation = aggregationOf(samples, loss);
  const advantages = samples.map(correctedAdvantages);
  return (micro) => ({
    ...scoreFeeds(micro, temperature),
    ...weightFeeds(micro, samples, aggregation),
    ...boundFeeds(loss),
    advantages: vectorTensor(micro, (row) => advantages[row]!),
    behavior_logprobs: vectorTensor(micro, (row) => samples[row]!.behaviorLogprobs),
    ...(referenceLogprobs && {
      reference_logprobs: vectorTensor(micro, (row) => referenceLogprobs[row]!),
      beta: floatScalar(klBeta),
    }),
  });
}

/** The largest float32, where there is no bound. */
const unbounded = 3.4028234663852886e38;

function boundFeeds(loss: TrainOptions['loss']): Record<string, Tensor> {
  const isMasked = ['importance_sampling', 'dppo', 'ipo'].includes(loss.type);
  const { low, high } = isMasked
    ? { low: loss.maskLow, high: loss.maskHigh ?? unbounded }
    : { low: loss.clipLow, high: loss.clipHigh };
  return { clip_low: floatScalar(low ?? 0), clip_high: floatScalar(high), kl_tau: floatScalar(loss.klTau ?? 0) };
}

export function requirePolicyInputs({ samples }: TrainBatch, options: TrainOptions): void {
  const { referenceLogprobs, klBeta, temperature } = options;
  samples.forEach((sample, row) => {
    requireAligned(sample.behaviorLogprobs, sample, `behaviour logprobs in row ${row}`);
    requireAligned(sample.advantages, sample, `advantages in row ${row}`);
    if (sample.samplingLogprobs) requireAligned(sample.samplingLogprobs, sample, `sampling logprobs in row ${row}`);
    if (referenceLogprobs) requireAligned(referenceLogprobs[row], sample, `reference logprobs in row ${row}`);
  });
  if (klBeta > 0 && !referenceLogprobs) {
    throw new RatchetError('Unsupported', `A KL term of ${klBeta} needs reference logprobs; none were given.`);
  }
  if (!(temperature > 0)) {
    throw new RatchetError('Unsupported', `Training needs the sampling temperature, a number > 0; got ${temperature}.`);
  }
}

/**
 * A token that was drawn from q rather than from the behaviour policy μ weighs μ/q: the expectation over q is then the
 * one over μ, and the ratio of the loss stays π/μ (decoupled objective, Hilton et al. 2022, Batch size-invariance, §3).
 */
/** Advantages with which tokens of a distribution that penalties or cuts had changed weigh as those of the policy's own. */
export function correctedAdvantages({ advantages, behaviorLogprobs, samplingLogprobs }: TrainSample): readonly number[] {
  if (!samplingLogprobs) return advantages;
  return advantages.map((advantage, t) => {
    const weight = Math.exp(behaviorLogprobs[t]! - samplingLogprobs[t]!);
    return advantage * Math.min(samplingWeightMax, weight);
  });
}

function weightFeeds(
  micro: MicroBatch,
  samples: readonly MaskedSample[],
  { factors, normalizer }: Aggregation,
): Record<string, Tensor> {
  const mask = gather(micro, (row) => samples[row]!.lossMask);
  const weights = mask.map((value, i) => value * factors[micro.sourceRow[i]!]!);
  return {
    mask: floats(mask, [mask.length]),
    weights: floats(weights, [weights.length]),
    inverse_normalizer: floatScalar(1 / normalizer),
  };
}

function vectorTensor(micro: MicroBatch, perRow: (row: number) => ArrayLike<number>): Tensor {
  const values = gather(micro, perRow);
  return floats(values, [values.length]);
}
