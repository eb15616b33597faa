import { createAskTeacher } from './ask-teacher.ts';
import { auditRun } from './audit-run.ts';
import { createBroadcastWeights } from './broadcast-weights.ts';
import { createCommitStep } from './commit-step.ts';
import type { AskDependencies, GenerateDependencies } from '../backends/rollouts/asked-model.ts';
import { createEvaluateChunk } from './evaluation/evaluate-chunk.ts';
import { createOpenEvaluation } from './evaluation/open-evaluation.ts';
import { createPlanEvaluations } from './evaluation/plan-evaluations.ts';
import { createCloseEvaluation, createNoteProgress } from './evaluation/write-results.ts';
import { judgeEvaluation } from './evaluation/judge-evaluation.ts';
import { createPlanNewest } from './evaluation/plan-newest.ts';
import { createHoldVersion, findEvaluation } from './hold-version.ts';
import { createRecordEvaluation } from './record-evaluation.ts';
import { filterAgain } from './filter-groups.ts';
import { createLeaseGroups } from './lease-groups.ts';
import { beginLineage, checkRewind } from '../runs/lineages.ts';
import { createOpenRun, type OpenRunDependencies } from './open-run.ts';
import { packBatch } from './pack-batch.ts';
import { planStep } from './plan-step.ts';
import { createPlayGroups } from './play-groups.ts';
import { createDescribeTrainers, type KnownTrainers } from './find-trainers.ts';
import { createLeaseTrainer, type TrainerLeased } from './lease-trainer.ts';
import { createComparePrompts, createSearchPrompts } from './prompt-search/search-prompts.ts';
import { createTryPrompt } from './prompt-search/try-prompt.ts';
import { createOpenPromptSearch, createPlanPromptSearch } from './prompt-search/open-search.ts';
import { createClosePromptSearch, createWritePrompts } from './prompt-search/write-results.ts';
import { createPublishVersion } from './publish-version.ts';
import { createRestoreVersion } from './restore-version.ts';
import { reopenRounds } from './reopen-rounds.ts';
import { readSpec } from '../runs/run-access.ts';
import { saveCheckpoint } from './save-checkpoint.ts';
import { createRemakeVersion, createTrainStep, findUnpublished, type TrainDependencies } from './train-step.ts';
import { nextTrainerEpoch } from './trainer-claims.ts';
import { createWarmUp } from './warm-up.ts';

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

/** Queue `ratchet`: beside the workflow, all glue between stored objects. */
export const createOrchestratorActivities = (
  dependencies: OpenRunDependencies & {
    codeVersion: string;
    inference: GenerateDependencies['inference'];
    findTrainers: () => Promise<KnownTrainers>;
    countRolloutWorkers: () => Promise<number>;
  },
) => ({
  openRun: createOpenRun(dependencies),
  readSpec,
  checkRewind,
  beginLineage,
  leaseGroups: createLeaseGroups(dependencies),
  reopenRounds,
  filterGroups: filterAgain,
  packBatch,
  planStep,
  commitStep: createCommitStep(dependencies.codeVersion),
  auditRun,
  broadcastWeights: createBroadcastWeights(dependencies.inference),
  saveCheckpoint,
  nextTrainerEpoch,
  findUnpublished,
  describeTrainers: createDescribeTrainers(dependencies.findTrainers),
  planEvaluations: createPlanEvaluations(dependencies),
  openEvaluation: createOpenEvaluation(dependencies),
  noteProgress: createNoteProgress({}),
  closeEvaluation: createCloseEvaluation({}),
  planPromptSearch: createPlanPromptSearch(dependencies),
  openPromptSearch: createOpenPromptSearch(dependencies),
  writePrompts: createWritePrompts(),
  closePromptSearch: createClosePromptSearch(),
  planNewest: createPlanNewest(dependencies),
  judgeEvaluation,
  holdVersion: createHoldVersion(dependencies.inference),
  findEvaluation,
  recordEvaluation: createRecordEvaluation(dependencies.inference),
});
export type OrchestratorActivities = ReturnType<typeof createOrchestratorActivities>;

/** Queue `ratchet-rollout`: environments and rubrics. */
export const createRolloutActivities = (dependencies: AskDependencies) => ({
  playGroups: createPlayGroups(dependencies),
  askTeacher: createAskTeacher(dependencies),
  evaluateChunk: createEvaluateChunk(dependencies),
  searchPrompts: createSearchPrompts(dependencies),
  comparePrompts: createComparePrompts(dependencies),
  tryPrompt: createTryPrompt(dependencies),
});
export type RolloutActivities = ReturnType<typeof createRolloutActivities>;

/** Queue `ratchet-train`, and the GPU process's own for holding it again: the process is taken for a run. */
export const createLeaseActivities = (
  { lease }: TrainDependencies,
  tell: (workflowId: string, held: TrainerLeased) => Promise<void>,
) => ({ leaseTrainer: createLeaseTrainer(lease, tell) });
export type LeaseActivities = ReturnType<typeof createLeaseActivities>;

/** The process's own queue: one slot, one policy. */
export const createTrainActivities = (
  dependencies: TrainDependencies & { readonly tokenizer: GenerateDependencies['tokenizer'] },
) => ({
  warmUp: createWarmUp(dependencies, dependencies.tokenizer),
  trainStep: createTrainStep(dependencies),
  remakeVersion: createRemakeVersion(dependencies),
  restoreVersion: createRestoreVersion(dependencies),
});
export type TrainActivities = ReturnType<typeof createTrainActivities>;

/** The process's queue for uploads, with a slot of their own: they go on while the next step trains. */
export const createUploadActivities = (dependencies: TrainDependencies) => ({
  publishVersion: createPublishVersion(dependencies),
});
export type UploadActivities = ReturnType<typeof createUploadActivities>;
