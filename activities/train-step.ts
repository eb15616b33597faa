import { layout } from '../core/layout.ts';
import type { ObjectRef, PolicyVersion, RunHandle, StepPlan } from '../core/rl/run-state.ts';
import { failpoint } from '../backends/failpoints.ts';
import { withHeartbeat } from './heartbeat.ts';
import type { PolicyTrainer, Recovery } from './policy-trainer.ts';
import { readJson, storeOf } from './run-access.ts';

export interface TrainStepResult {
  /** null when the batch was refused: no version was made. */
  readonly policy: PolicyVersion | null;
  readonly reason?: string;
  /** The optimizer's state at this version, where the plan asked for a snapshot. */
  readonly optimizer: ObjectRef | null;
  readonly metrics: Readonly<Record<string, number>>;
  readonly recovery: Recovery | null;
  readonly seconds: number;
}

/**
 * One application of the plan's batch to the plan's version. A retry in the same process returns what was done; in
 * another one it restores, replays the stored batches, and does the same again.
 */
export const createTrainStep = (trainer: PolicyTrainer) => {
  let last: { readonly task: string; readonly result: TrainStepResult } | null = null;
  return async (input: { readonly run: RunHandle; readonly plan: ObjectRef }): Promise<TrainStepResult> =>
    withHeartbeat(async () => {
      const { run } = input;
      // The run is part of it: two runs of one config have the very same plans, and each needs its own weights stored.
      const task = `${run.store}${run.name}/${run.lineage}#${input.plan.sha256}`;
      if (last?.task === task) return last.result;
      const plan = await readJson<StepPlan>(run, input.plan);
      const recovery = await trainer.bringTo(run, plan.from);
      const startedAt = performance.now();
      const outcome = await trainer.train(run, plan);
      await failpoint('train.applied');
      const policy = outcome.applied ? await exportVersion(trainer, run, plan, outcome.digest) : null;
      const optimizer = policy && plan.snapshot ? await storeOptimizer(trainer, run, plan.step) : null;
      const result: TrainStepResult = {
        policy,
        ...(outcome.reason === undefined ? {} : { reason: outcome.reason }),
        optimizer,
        metrics: outcome.metrics,
        recovery,
        seconds: (performance.now() - startedAt) / 1000,
      };
      last = { task, result };
      return result;
    });
};

async function exportVersion(
  trainer: PolicyTrainer,
  run: RunHandle,
  plan: StepPlan,
  digest: string,
): Promise<PolicyVersion> {
  const weights = layout.weights(run.lineage, plan.step);
  return { step: plan.step, digest, weights, file: await trainer.exportTo(run, weights) };
}

async function storeOptimizer(trainer: PolicyTrainer, run: RunHandle, step: number): Promise<ObjectRef> {
  const key = `${layout.checkpoint(run.lineage, step)}optimizer.safetensors`;
  return storeOf(run).put(key, await trainer.saveOptimizer());
}
