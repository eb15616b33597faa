import { RatchetError } from '../../core/errors.ts';
import { present } from '../../core/present.ts';
import type { RowSource, TrainBatch, TrainSample } from '../../core/rl/learning/batch.ts';
import type { StepPlan } from '../../core/rl/run-state.ts';
import type { LossSettings } from '../../config/run-spec.ts';
import { aggregationOf, correctedAdvantages, samplingWeights } from '../../engine/index.ts';
import type { SupervisedRow } from '../trainer/types.ts';
import { type BatchColumns, readColumns, type RowValues } from './batch-columns.ts';
import type { Table } from './settings-file.ts';

/** A plan in prime-rl’s terms: the objective of its rows, and the streams of their tokens. */

/** Refuses what prime-rl’s trainer does not have; nothing is replaced by something else. */
export function requireKnown(plan: StepPlan): void {
  const { loss, klBeta, numIterations, numMiniBatches = 1, microBatchSize, optimizer } = plan;
  const wrong: readonly (readonly [boolean, string, unknown])[] = [
    [loss.type !== 'custom', 'a loss that is not a file of your own', loss.type],
    [(loss.entropyCoef ?? 0) === 0, 'no bonus for entropy', loss.entropyCoef],
    [
      (loss.teacherTau ?? 0) === 0 || isRefKl(loss),
      'a teacher alone, with prime-rl’s own loss for it',
      loss.teacherTau,
    ],
    [
      plan.distillation === undefined || isRefKl(plan.distillation),
      'prime-rl’s own loss of distillation',
      plan.distillation?.type,
    ],
    [klBeta === 0, 'no KL penalty', klBeta],
    [
      numIterations === 1 && numMiniBatches === 1,
      'one optimizer step per batch',
      `${numIterations} × ${numMiniBatches}`,
    ],
    [
      microBatchSize === null,
      'no micro_batch_size: rows are packed by seq_len (where memory runs out, [trainer] ac_freq = 1, fsdp_cpu_offload or cp, or a smaller seq_len)',
      microBatchSize,
    ],
    [optimizer.decayMatricesOnly !== true, 'weight_decay of all weights', 'decay_matrices_only'],
    [optimizer.type !== 'muon' || optimizer.epsilon === 1e-8, 'an epsilon of 1e-8 with Muon', optimizer.epsilon],
  ];
  for (const [isMet, expected, received] of wrong) {
    if (isMet) continue;
    throw new RatchetError('Unsupported', `prime-rl’s trainer: expected ${expected}, got ${String(received)}.`);
  }
}

/** prime-rl’s `ref_kl`, as the run file’s default for on-policy distillation has it. */
function isRefKl(loss: LossSettings): boolean {
  const { type, maskLow, maskHigh, klTau, advantageTau, teacherTau, ratioMax } = loss;
  return type === 'ipo' && maskLow === 0.2 && (maskHigh ?? null) === null && klTau === 1e-3 && advantageTau === 0 && teacherTau === 1 && ratioMax === undefined; // prettier-ignore
}

/** Settings of python/ratchet_prime_rl/objective.py. prime-rl’s own code computes the losses that it has. */
export function objectiveOf(loss: LossSettings): Table {
  const { type, clipLow, clipHigh, maskLow = 0, maskHigh = null, klTau = 0, ratioMax } = loss;
  const isOwn = ratioMax === undefined && (type === 'dppo' || (type === 'ipo' && maskLow === maskHigh));
  // A probability changes by 1 at most.
  if (isOwn) return { by: 'prime-rl', type, maskLow, maskHigh: maskHigh ?? 2, klTau };
  return {
    by: 'ratchet',
    type,
    clipHigh,
    maskLow,
    klTau,
    ...present({ clipLow, ratioMax, maskHigh: maskHigh ?? undefined }),
  };
}

/** Columns of a batch whose rows a policy loss learns from. */
export async function policyBatch(plan: StepPlan, batch: TrainBatch): Promise<BatchColumns> {
  const { loss, distillation, temperature } = plan;
  const isDistilled = (objective: 'ref_kl' | undefined): boolean => objective === 'ref_kl' || isRefKl(loss);
  const hasDistilled = batch.rows.some(({ objective }) => isDistilled(objective));
  const shares = sharesOf(
    batch.rows.filter(({ objective }) => !isDistilled(objective)),
    loss,
  );
  let next = 0;
  return readColumns(batch, (row, place) => {
    const isTaught = isDistilled(row.objective);
    const share = isTaught ? 0 : shares[next++]!;
    requireMask(row.lossMask, place);
    const own = isTaught && row.objective === 'ref_kl' ? distillation : loss;
    if (!own)
      throw new RatchetError(
        'Unsupported',
        `Row ${place} learns from a teacher alone, and the plan has no loss for that.`,
      );
    const at = { temperature: row.temperature ?? temperature };
    const observed = row.observed?.length ? { ce_weights: spread(row) } : {};
    if (loss.type === 'cross_entropy')
      return { ...at, streams: { ce_weights: row.lossMask.map((mask) => mask * share) } };
    if (isTaught) return { ...at, ...taught(row, place), streams: { ...taught(row, place).streams, ...observed } };
    const isPlain = share === 1 && !hasDistilled;
    return {
      ...at,
      mask: row.lossMask,
      advantages: correctedAdvantages(row, own.advantageTau ?? 1),
      logprobs: row.behaviorLogprobs,
      streams: { ...(isPlain ? {} : { rl_weights: row.lossMask.map((mask) => mask * share) }), ...observed },
    };
  });
}

/**
 * The weight that makes prime-rl’s mean over tokens the aggregation of the loss, one for each row: its factor times the tokens that count,
 * over the normalizer.
 */
function sharesOf(rows: RowSource<TrainSample>['rows'], loss: LossSettings): number[] {
  const { factors, normalizer } = aggregationOf(rows, loss);
  const counted = rows.reduce((sum, row) => sum + (row.weight > 0 ? row.counted : 0), 0);
  return [...factors].map((factor) => (loss.aggregation === 'token' ? 1 : (factor * counted) / normalizer));
}

function taught(row: TrainSample, place: number): Omit<RowValues, 'temperature'> {
  const { teacherLogprobs, lossMask, behaviorLogprobs } = row;
  if (!teacherLogprobs)
    throw new RatchetError(
      'Unsupported',
      `The training batch is malformed: expected teacher logprobs in row ${place}, one per token, got none.`,
    );
  if (samplingWeights(row).some((weight) => weight !== 1))
    throw new RatchetError(
      'Unsupported',
      `prime-rl’s trainer: expected no correction of rows that a teacher alone teaches, got one in row ${place}.`,
    );
  return {
    mask: lossMask,
    logprobs: behaviorLogprobs,
    streams: { ref_logprobs: teacherLogprobs, ref_kl_weights: lossMask, rl_weights: lossMask.map(() => 0) },
  };
}

function spread({ observed = [], tokenIds }: TrainSample): Float32Array {
  const weights = new Float32Array(tokenIds.length);
  for (const { from, to, weight } of observed) weights.fill(weight, from, to);
  return weights;
}

/** Columns of rows that are learned as they stand. */
export async function supervisedRows(
  source: RowSource<SupervisedRow>,
  normalizer: number | undefined,
): Promise<BatchColumns> {
  const weightsOf = (row: SupervisedRow): readonly number[] =>
    normalizer === undefined ? row.lossMask : (row.tokenWeights ?? row.lossMask);
  let share = 1;
  if (normalizer !== undefined) {
    const rows = await source.read([...source.rows.keys()]);
    const counted = rows.reduce((sum, row) => sum + weightsOf(row).filter((weight) => weight !== 0).length, 0);
    share = counted / normalizer;
  }
  return readColumns(source, (row, place) => {
    if (normalizer === undefined) requireMask(row.lossMask, place);
    return { temperature: 1, streams: { ce_weights: weightsOf(row).map((weight) => weight * share) } };
  });
}

function requireMask(mask: readonly number[], place: number): void {
  const strange = mask.find((value) => value !== 0 && value !== 1);
  if (strange === undefined && mask[0] === 0) return;
  throw new RatchetError(
    'Unsupported',
    `The training batch is malformed: expected a mask of 0 and 1 that begins with 0 in row ${place}, got ${strange ?? mask[0]}.`,
  );
}

/**
 * What prime-rl does not look at before it trains: it would train on numbers that are none, and die of a token that is not in the vocabulary.
 * Gives the reason to refuse the batch; throws for one that is malformed.
 */
export function faultOf(
  columns: BatchColumns,
  { seqLen, vocabulary }: { readonly seqLen: number; readonly vocabulary: number },
): string | null {
  const malformed = (expected: string, received: string): RatchetError =>
    new RatchetError('Unsupported', `The training batch is malformed: expected ${expected}, got ${received}.`);
  const { lengths, tokenIds, mask, streams, temperatures } = columns;
  if (lengths.length === 0) throw malformed('a row at least', 'none');
  const long = lengths.findIndex((length) => length > seqLen);
  if (long >= 0) throw malformed(`rows of ${seqLen} tokens at most (seq_len)`, `${lengths[long]} in row ${long}`);
  const empty = lengths.indexOf(0);
  if (empty >= 0) throw malformed('rows with tokens', `none in row ${empty}`);
  const foreign = tokenIds.find((id) => id < 0 || id >= vocabulary);
  if (foreign !== undefined)
    throw malformed(`tokens from 0 to ${vocabulary - 1}, the model’s vocabulary`, String(foreign));
  const cold = temperatures.find((temperature) => !(temperature > 0 && Number.isFinite(temperature)));
  if (cold !== undefined) throw malformed('temperatures above 0', String(cold));
  const learned = Object.entries(streams).some(([name, { values }]) => name !== 'ref_logprobs' && name !== 'rl_weights' && values.some((weight) => weight !== 0)); // prettier-ignore
  if (!learned && !mask.includes(1)) return 'no token of the batch carries loss';
  const columnsOfNumbers = { advantages: columns.advantages, 'log probabilities': columns.logprobs, ...Object.fromEntries(Object.entries(streams).map(([name, { values }]) => [name, values])) }; // prettier-ignore
  for (const [name, values] of Object.entries(columnsOfNumbers)) {
    const at = values.findIndex((value) => !Number.isFinite(value));
    if (at >= 0) return `the ${name} of the batch hold ${values[at]}`;
  }
  return null;
}
