import { CorrectionSpec } from '../config/run-spec.ts';
import { RatchetError } from '../core/errors.ts';
import { batchOf, type PackedRow, type TrainBatch, type TrainSample } from '../core/rl/learning/batch.ts';
import {
  asksForProximal,
  correctionMetrics,
  type CorrectionTally,
  correctRow,
} from '../core/rl/learning/correction.ts';
import type { StepPlan } from '../core/rl/run-state.ts';
import type { StoredBatch } from '../runs/rollouts/batches.ts';

interface CorrectedBatch {
  readonly batch: TrainBatch;
  /** Metrics of the correction, over the rows that were read by then. */
  readonly told: () => Record<string, number>;
}

/**
 * Correction of a batch. Rows whose server reported only the sampler's log probabilities get the policy's from the
 * weights at the start of the step, as in verl (`old_log_probs`, trainer/ppo/ray_trainer.py): the trust region is
 * around those weights, and a token's weight is their ratio to the sampler (decoupled objective, Hilton et al. 2022,
 * §3). The sampling weights would not do: a turn may mix several versions, some of which may be gone when the batch is
 * trained again. `score` gives null when the trainer cannot.
 */
export async function correctBatch(
  stored: StoredBatch,
  { loss }: Pick<StepPlan, 'loss'>,
  score: () => Promise<readonly Float32Array[] | null>,
): Promise<CorrectedBatch> {
  const { rows, untold } = stored;
  const correction = { ...CorrectionSpec.parse(loss.correction ?? {}), oldLogprobs: loss.oldLogprobs ?? 'sampler' };
  const isSupervised = loss.type === 'cross_entropy'; // a supervised loss has no sampler to compare with
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
