import { auditRun } from './audit-run.ts';
import { createBroadcastWeights } from './broadcast-weights.ts';
import { createCommitStep } from './commit-step.ts';
import type { GenerateDependencies } from '../backends/rollouts/asked-model.ts';
import { createOpenEvaluation } from './evaluation/open-evaluation.ts';
import { createPlanEvaluations } from './evaluation/plan-evaluations.ts';
import { createCloseEvaluation, createNoteProgress } from './evaluation/write-results.ts';
import { judgeEvaluation } from './evaluation/judge-evaluation.ts';
import { createPlanNewest } from './evaluation/plan-newest.ts';
import { createHoldVersion, findEvaluation } from './hold-version.ts';
import { createRecordEvaluation } from './record-evaluation.ts';
import { filterAgain } from './filter-groups.ts';
import { createLeaseGroups, type LeaseDependencies } from './lease-groups.ts';
import { beginLineage, checkBehind, checkRewind } from '../runs/lineages.ts';
import { createOpenRun, type OpenRunDependencies } from './open-run.ts';
import { packBatch } from './pack-batch.ts';
import { planStep } from './plan-step.ts';
import { createDescribeTrainers, type KnownTrainers } from './find-trainers.ts';
import { createOpenPromptSearch, createPlanPromptSearch } from './prompt-search/open-search.ts';
import { createOpenTrial } from './prompt-search/try-prompt.ts';
import { createClosePromptSearch, createWritePrompts } from './prompt-search/write-results.ts';
import { reopenRounds } from './reopen-rounds.ts';
import { readSpec } from '../runs/run-access.ts';
import { saveCheckpoint } from './save-checkpoint.ts';
import { findUnpublished } from './train-step.ts';
import { nextTrainerEpoch } from './trainer-claims.ts';

/** Queue `ratchet`: beside the workflow, all glue between stored objects. */
export const createOrchestratorActivities = (
  dependencies: OpenRunDependencies &
    LeaseDependencies & {
      codeVersion: string;
      inference: GenerateDependencies['inference'];
      findTrainers: () => Promise<KnownTrainers>;
    },
) => ({
  openRun: createOpenRun(dependencies),
  readSpec,
  checkRewind,
  checkBehind,
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
  openTrial: createOpenTrial(dependencies),
  writePrompts: createWritePrompts(),
  closePromptSearch: createClosePromptSearch(),
  planNewest: createPlanNewest(dependencies),
  judgeEvaluation,
  holdVersion: createHoldVersion(dependencies.inference),
  findEvaluation,
  recordEvaluation: createRecordEvaluation(dependencies.inference),
});
export type OrchestratorActivities = ReturnType<typeof createOrchestratorActivities>;
