import { isHeld, type MaskedSample, type RowFacts, type Rows, type TrainSample } from '../../core/rl/learning/batch.ts';
import { RatchetError } from '../../core/errors.ts';
import { defaultWeightMax } from '../../core/rl/learning/correction.ts';
import { floats, floatScalar, ints, longs } from '../onnx/session.ts';
import type { Tensor } from '../onnx/runtime.ts';
import { type Aggregation, aggregationOf } from './aggregate.ts';
import { lossTraits } from '../../core/rl/losses.ts';
import { gather, maskTotal, type MicroBatch, requireAligned } from './micro-batches.ts';
import type { PolicyLossOptions, SupervisedSample } from './types.ts';

/**
 * Builds the loss inputs of a train graph for a micro-batch. A graph that sees only some positions gets what its loss
 * needs from whole rows as `rows`.
 */
export type LossFeeds<Row extends MaskedSample> = (
  micro: MicroBatch<Row>,
  rows?: RowDifferences,
) => Record<string, Tensor>;

/** Mean of ℓ − μ over a row's tokens, keyed by the row of the batch. */
export type RowDifferences = ReadonlyMap<number, number>;

export function tokenFeeds(micro: MicroBatch): Record<string, Tensor> {
  return {
    tokens: ints(micro.tokens, [micro.lines, micro.width]),
    selected: longs(micro.selected, [micro.selected.length]),
    ...(micro.sharing && {
      line_positions: longs(micro.sharing.positions, [micro.lines, micro.width]),
      line_bias: floats(micro.sharing.bias, [micro.lines, 1, micro.width, micro.width]),
    }),
  };
}

/** Each row's own temperature, if it has one. */
export function scoreFeeds(micro: MicroBatch, temperature: number): Record<string, Tensor> {
  return targetFeeds(micro, (row) => micro.samples.get(row)!.temperature ?? temperature);
}

function targetFeeds(micro: MicroBatch, temperatureOf: (row: number) => number): Record<string, Tensor> {
  const count = micro.targets.length;
  const inverse = Float32Array.from(micro.sourceRow, (row) => 1 / temperatureOf(row));
  return { targets: longs(micro.targets, [count]), inverse_temperature: floats(inverse, [count, 1]) };
}

/** `facts`: of all rows of the batch; at temperature 1 unless another is given. */
export function supervisedFeeds(
  facts: readonly RowFacts[],
  { normalizer, temperature }: { readonly normalizer?: number | undefined; readonly temperature?: number } = {},
): LossFeeds<SupervisedSample> {
  const aggregation = aggregationOf(facts, { aggregation: 'token' });
  const scored = (micro: MicroBatch): Record<string, Tensor> =>
    temperature === undefined ? targetFeeds(micro, () => 1) : scoreFeeds(micro, temperature);
  if (normalizer === undefined) return (micro) => ({ ...scored(micro), ...weightFeeds(micro, aggregation) });
  return (micro) => ({
    ...scored(micro),
    ...weightFeeds(micro, { ...aggregation, normalizer }),
    weights: vectorTensor(micro, (row) => micro.samples.get(row)!.tokenWeights ?? []),
  });
}

export function policyFeeds(facts: readonly RowFacts[], options: PolicyLossOptions): LossFeeds<TrainSample> {
  const { loss, referenceLogprobs, temperature, klBeta } = options;
  const aggregation = aggregationOf(facts, loss);
  const { entropyCoef = 0 } = loss;
  const bonus = entropyCoef > 0 ? { entropy_weight: floatScalar(entropyCoef / maskTotal(facts)) } : {};
  return (micro, rows) => ({
    ...bonus,
    ...scoreFeeds(micro, temperature),
    ...weightFeeds(micro, aggregation),
    ...boundFeeds(loss),
    ...(lossTraits(loss.type).comparesRows ? rowFeeds(micro, rows) : {}),
    ...teacherFeeds(micro, loss),
    advantages: vectorTensor(micro, (row) => correctedAdvantages(micro.samples.get(row)!, loss.advantageTau ?? 1)),
    behavior_logprobs: vectorTensor(micro, (row) => micro.samples.get(row)!.behaviorLogprobs),
    sampled_logprobs: vectorTensor(micro, (row) => {
      const { sampledLogprobs, behaviorLogprobs } = micro.samples.get(row)!;
      return sampledLogprobs ?? behaviorLogprobs;
    }),
    ...(referenceLogprobs && {
      reference_logprobs: vectorTensor(micro, (row) => referenceLogprobs[row]!),
      beta: floatScalar(klBeta),
    }),
  });
}

/**
 * A teacher's log probabilities and the weight of their difference to the policy's: empty without a teacher, else τ
 * times the row's correction.
 */
function teacherFeeds(
  micro: MicroBatch<TrainSample>,
  { teacherTau = 0 }: PolicyLossOptions['loss'],
): Record<string, Tensor> {
  if (teacherTau === 0) {
    const without = floats(new Float32Array(micro.sourceRow.length), [micro.sourceRow.length]);
    return { teacher_weights: without, teacher_logprobs: without };
  }
  return {
    teacher_weights: vectorTensor(micro, (row) =>
      samplingWeights(micro.samples.get(row)!).map((weight) => teacherTau * weight),
    ),
    teacher_logprobs: vectorTensor(micro, (row) => micro.samples.get(row)!.teacherLogprobs ?? []),
  };
}

/** Shares of tokens in their rows, for a graph that sees whole rows; else the means themselves. */
function rowFeeds(micro: MicroBatch, rows: RowDifferences | undefined): Record<string, Tensor> {
  const { sourceRow } = micro;
  const count = sourceRow.length;
  if (rows)
    return {
      row_differences: floats(
        Float32Array.from(sourceRow, (row) => rows.get(row)!),
        [count],
      ),
    };
  const mask = gather(micro, (row) => micro.samples.get(row)!.lossMask);
  const placeOf = new Map(micro.rows.map((row, place) => [row, place]));
  const rowOf = Array.from(sourceRow, (row) => placeOf.get(row)!);
  const totals = new Float64Array(micro.rows.length);
  rowOf.forEach((row, i) => (totals[row] = totals[row]! + mask[i]!));
  const shares = new Float32Array(micro.rows.length * count);
  rowOf.forEach((row, i) => (shares[row * count + i] = mask[i]! / totals[row]!));
  return {
    row_shares: floats(shares, [micro.rows.length, count]),
    row_of: longs(BigInt64Array.from(rowOf, BigInt), [count]),
  };
}

/** Computed from the policy's log probabilities, [selected]. */
export function rowDifferences(micro: MicroBatch<TrainSample>, logprobs: Float32Array): RowDifferences {
  const mask = gather(micro, (row) => micro.samples.get(row)!.lossMask);
  const behavior = gather(micro, (row) => micro.samples.get(row)!.behaviorLogprobs);
  const sums = new Map<number, { difference: number; total: number }>();
  micro.sourceRow.forEach((row, i) => {
    const { difference = 0, total = 0 } = sums.get(row) ?? {};
    sums.set(row, {
      difference: difference + mask[i]! * (logprobs[i]! - behavior[i]!),
      total: total + mask[i]!,
    });
  });
  return new Map([...sums].map(([row, { difference, total }]) => [row, difference / total]));
}

/** The largest float32 means no bound. */
const unbounded = 3.4028234663852886e38;

function boundFeeds(loss: PolicyLossOptions['loss']): Record<string, Tensor> {
  const { bounds, capsRatios } = lossTraits(loss.type);
  const { low, high } =
    bounds === 'mask' || bounds === 'move'
      ? { low: loss.maskLow, high: loss.maskHigh ?? unbounded }
      : { low: loss.clipLow, high: loss.clipHigh };
  return {
    clip_low: floatScalar(low ?? 0),
    clip_high: floatScalar(high),
    kl_tau: floatScalar(loss.klTau ?? 0),
    ...(capsRatios ? { ratio_max: floatScalar(loss.ratioMax ?? unbounded) } : {}),
  };
}

/** Throws unless a row has all inputs of the loss. */
export function requirePolicyRow(
  sample: TrainSample,
  row: number,
  { referenceLogprobs, loss }: PolicyLossOptions,
): void {
  requireAligned(sample.behaviorLogprobs, sample, `behaviour logprobs in row ${row}`);
  requireAligned(sample.advantages, sample, `advantages in row ${row}`);
  const { sampledLogprobs, correctionWeights } = sample;
  if (sampledLogprobs) requireAligned(sampledLogprobs, sample, `sampled logprobs in row ${row}`);
  if (correctionWeights) requireAligned(correctionWeights, sample, `correction weights in row ${row}`);
  if (sample.samplingLogprobs) requireAligned(sample.samplingLogprobs, sample, `sampling logprobs in row ${row}`);
  if (referenceLogprobs) requireAligned(referenceLogprobs[row], sample, `reference logprobs in row ${row}`);
  if (loss.teacherTau) requireAligned(sample.teacherLogprobs, sample, `teacher logprobs in row ${row}`);
}

/** Checks rows in memory at once, others when they are read. */
export function requirePolicyInputs(given: Rows<TrainSample>, options: PolicyLossOptions): void {
  const { referenceLogprobs, klBeta, temperature } = options;
  if (isHeld(given)) {
    for (const [row, sample] of given.entries()) if (!sample.objective) requirePolicyRow(sample, row, options);
  }
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
export function correctedAdvantages(sample: TrainSample, advantageTau = 1): readonly number[] {
  const { advantages: given, samplingLogprobs } = sample;
  const advantages = advantageTau === 1 ? given : given.map((advantage) => advantage * advantageTau);
  if (!samplingLogprobs) return advantages;
  const weights = samplingWeights(sample);
  return advantages.map((advantage, t) => advantage * weights[t]!);
}

/** Weight of a token for having been drawn from q; advantages of a row with `correctionWeights` include it. */
export function samplingWeights({
  behaviorLogprobs,
  samplingLogprobs,
  correctionWeights,
}: TrainSample): readonly number[] {
  if (correctionWeights) return correctionWeights;
  if (!samplingLogprobs) return behaviorLogprobs.map(() => 1);
  return behaviorLogprobs.map((logprob, t) => Math.min(defaultWeightMax, Math.exp(logprob - samplingLogprobs[t]!)));
}

function weightFeeds(micro: MicroBatch, { factors, normalizer }: Aggregation): Record<string, Tensor> {
  const mask = gather(micro, (row) => micro.samples.get(row)!.lossMask);
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
