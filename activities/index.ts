import { auditRun } from './audit-run.ts';
import { createBroadcastWeights } from './broadcast-weights.ts';
import { createCommitStep } from './commit-step.ts';
import { createEvaluatePolicy } from './evaluate-policy.ts';
import { filterGroups } from './filter-groups.ts';
import { createGenerateRollouts, type GenerateDependencies } from './generate-rollouts.ts';
import { leaseRound } from './lease-groups.ts';
import { beginLineage, checkRewind } from './lineages.ts';
import { createOpenRun, type OpenRunDependencies } from './open-run.ts';
import { packBatch, planStep } from './plan-step.ts';
import type { PolicyTrainer } from './policy-trainer.ts';
import { recordMetrics } from './record-metrics.ts';
import { createRestoreVersion } from './restore-version.ts';
import { saveCheckpoint } from './save-checkpoint.ts';
import { createScoreRollouts } from './score-rollouts.ts';
import { createTrainStep } from './train-step.ts';
import { createWarmUp } from './warm-up.ts';

export type { EvaluationSummary } from './evaluate-policy.ts';
export type { FilteredRound } from './filter-groups.ts';
export type { GeneratedChunk } from './generate-rollouts.ts';
export type { LeaseInput } from './lease-groups.ts';
export type { OpenedRun, TrainRunInput } from './open-run.ts';
export type { TrainStepResult } from './train-step.ts';
export type { WarmUpState } from './warm-up.ts';

/** Queue `ratchet`: beside the workflow, all glue between stored objects. */
export const createOrchestratorActivities = (
  dependencies: OpenRunDependencies & { codeVersion: string; inference: GenerateDependencies['inference'] },
) => ({
  openRun: createOpenRun(dependencies),
  checkRewind,
  beginLineage,
  leaseGroups: leaseRound,
  filterGroups,
  packBatch,
  planStep,
  commitStep: createCommitStep(dependencies.codeVersion),
  recordMetrics,
  auditRun,
  broadcastWeights: createBroadcastWeights(dependencies.inference),
  saveCheckpoint,
});
export type OrchestratorActivities = ReturnType<typeof createOrchestratorActivities>;

/** Queue `ratchet-rollout`: environments and rubrics. */
export const createRolloutActivities = (dependencies: GenerateDependencies) => ({
  generateRollouts: createGenerateRollouts(dependencies),
  scoreRollouts: createScoreRollouts(dependencies),
  evaluatePolicy: createEvaluatePolicy(dependencies),
});
export type RolloutActivities = ReturnType<typeof createRolloutActivities>;

/** Queue `ratchet-train`: one slot, one policy. */
export const createTrainActivities = (dependencies: {
  readonly trainer: PolicyTrainer;
  readonly tokenizer: GenerateDependencies['tokenizer'];
}) => ({
  warmUp: createWarmUp(dependencies.trainer, dependencies.tokenizer),
  trainStep: createTrainStep(dependencies.trainer),
  restoreVersion: createRestoreVersion(dependencies.trainer),
});
export type TrainActivities = ReturnType<typeof createTrainActivities>;
