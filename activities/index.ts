/** All activities, by the worker that executes them. A worker loads its own file only. */
export { createOrchestratorActivities, type OrchestratorActivities } from './of-orchestrator.ts';
export { createRolloutActivities, type RolloutActivities } from './of-rollout-worker.ts';
export {
  createLeaseActivities,
  createTrainActivities,
  createUploadActivities,
  type LeaseActivities,
  type TrainActivities,
  type UploadActivities,
} from './of-gpu-worker.ts';

export type { EvaluationSummary, RecordedEvaluation } from './record-evaluation.ts';
export type { LeaseInput, LeasedRound, MayLease } from './lease-groups.ts';
export type { TrainerLeased } from './lease-trainer.ts';
export type { KnownTrainers } from './find-trainers.ts';
export type { OpenedRun, TakenOver, TrainRunInput } from './open-run.ts';
export type { PlayedChunk } from './play-groups.ts';
export type { Recovery } from '../learn/policy-trainer.ts';
export type { TrainedBatch } from './train-batch.ts';
export type { WarmUpState } from '../runs/versions/warm-up-state.ts';
