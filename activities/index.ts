/** Every activity, by the worker that plays it. A worker loads the file of its own. */
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
export type { LeaseInput, LeasedRound } from './lease-groups.ts';
export type { TrainerLeased } from './lease-trainer.ts';
export type { KnownTrainers } from './find-trainers.ts';
export type { OpenedRun, TakenOver, TrainRunInput } from './open-run.ts';
export type { PlayedChunk } from './play-groups.ts';
export type { Recovery } from '../runs/policy-trainer.ts';
export type { SearchProgress } from './prompt-search/search-prompts.ts';
export type { TrainStepResult } from './train-step.ts';
export type { WarmUpState } from '../runs/warm-up-state.ts';
