import { CorrectionSpec } from '../config/run-spec.ts';
import { RatchetError } from '../core/errors.ts';
import { batchOf, type PackedRow, type TrainBatch, type TrainSample } from '../core/rl/batch.ts';
import { asksForProximal, correctionMetrics, type CorrectionTally, correctRow } from '../core/rl/correction.ts';
import type { StepPlan } from '../core/rl/run-state.ts';
import type { StoredBatch } from './batches.ts';

interface CorrectedBatch {
  readonly batch: TrainBatch;
  /** Metrics of the correction, over the rows that were read by then. */
  readonly told: () => Record<string, number>;
}

/**
 * What the correction makes of a batch. Rows whose server told the sampler's log probabilities alone get the policy's from the weights
 * that the step begins from. So does verl (`old_log_probs`, trainer/ppo/ray_trainer.py): the trust region is around those weights, and
 * the weight of a token is of them over the sampler (decoupled objective, Hilton et al. 2022, §3). The weights that sampled would not
 * do: a turn may be of several versions, some of which may be gone when the batch is trained again. `score` gives null where the
 * trainer cannot.
 */
export async function correctBatch(
  stored: StoredBatch,
  { loss }: Pick<StepPlan, 'loss'>,
  score: () => Promise<readonly Float32Array[] | null>,
): Promise<CorrectedBatch> {
  const { rows, untold } = stored;
  const correction = { ...CorrectionSpec.parse(loss.correction ?? {}), oldLogprobs: loss.oldLogprobs ?? 'sampler' };
  const isSupervised = loss.type === 'cross_entropy'; // it compares with nobody who sampled
  const isAsked = !isSupervised && (untold.length > 0 || asksForProximal(correction));
  const proximal = isAsked ? await score() : null;
  if (isAsked && !proximal) {
    const why =
      untold.length === 0
        ? '[trainer.loss] old_logprobs or a mask of [trainer.correction] asks for'
        : `the inference server did not tell for ${untold.length} of ${rows.length} rows, since it sampled with top_p or the like`;
    throw new RatchetError(
      'Unsupported',
      `This trainer cannot compute the policy's log probabilities, which ${why}: expected \`logprobs\` of the trainer module, or no such setting.`,
    );
  }
  const tallies = new Map<number, CorrectionTally>();
  const corrected = (row: PackedRow, place: number): TrainSample => {
    if (isSupervised) return { ...row, behaviorLogprobs: row.behaviorLogprobs ?? row.lossMask.map(() => 0) };
    const { sample, tally } = correctRow(row, proximal?.[place] ?? null, correction);
    if (tally) tallies.set(place, tally);
    return sample;
  };
  const batch = batchOf({
    rows,
    read: async (places) => (await stored.read(places)).map((row, i) => corrected(row, places[i]!)),
  });
  return { batch, told: () => correctionMetrics([...tallies.values()]) };
}
