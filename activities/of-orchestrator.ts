import { type BeginSweeps, sweepsFor } from './around/begin-sweeps.ts';
import { describeTurn, tellStanding } from './ask-pool.ts';
import { auditRun } from './audit-run.ts';
import { createBroadcastWeights } from './broadcast-weights.ts';
import { createCommitStep } from './commit-step.ts';
import type { GenerateDependencies } from '../play/policy/asked-model.ts';
import { createOpenEvaluation } from './evaluation/open-evaluation.ts';
import { createPlanEvaluations } from './evaluation/plan-evaluations.ts';
import { createCloseEvaluation, createNoteProgress } from './evaluation/write-results.ts';
import { judgeEvaluation } from './evaluation/judge-evaluation.ts';
import { createPlanNewest } from './evaluation/plan-newest.ts';
import { createHoldVersion, createLeaveServers, findEvaluation } from './hold-version.ts';
import { createRecordEvaluation } from './record-evaluation.ts';
import { filterAgain } from './filter-groups.ts';
import { createLeaseGroups, leaseBeside, type LeaseDependencies } from './lease-groups.ts';
import {
  createRecords,
  executionHere,
  type HistoryOfChanges,
  recordAround,
  recordingRescore,
} from './record-change.ts';
import { beginLineage, checkBehind, checkRewind } from '../runs/lineages/lineages.ts';
import { teamNamedBy } from '../runs/changes.ts';
import { setBudget } from '../runs/budgets/set-budget.ts';
import { createOpenRun, type OpenRunDependencies } from './open-run.ts';
import { measureSweepRun } from './measure-sweep-run.ts';
import { createPackBatch } from './pack-batch.ts';
import { createDescribeTrainers, type KnownTrainers } from './find-trainers.ts';
import { createOpenPromptSearch, createPlanPromptSearch } from './prompt-search/open-search.ts';
import { createOpenTrial, recordTrial } from './prompt-search/record-trial.ts';
import { createClosePromptSearch, createWritePrompts } from './prompt-search/write-results.ts';
import { reopenRounds } from './reopen-rounds.ts';
import { closeRescore } from './rescore/close-rescore.ts';
import { createOpenRescore } from './rescore/open-rescore.ts';
import { readSpec } from '../runs/run-access.ts';
import { saveCheckpoint } from './save-checkpoint.ts';
import { createSweepSandboxes } from './sweep-sandboxes.ts';
import { findUnpublished } from './train-batch.ts';
import { nextTrainerEpoch } from './trainer-claims.ts';

/** Activities of the queue `ratchet`, beside the workflows: all glue between stored objects. */
export const createOrchestratorActivities = (
  dependencies: OpenRunDependencies &
    LeaseDependencies & {
      codeVersion: string;
      inference: GenerateDependencies['inference'];
      findTrainers: () => Promise<KnownTrainers>;
      /** Missing: nobody sweeps. */
      beginSweeps?: BeginSweeps;
      history: HistoryOfChanges;
    },
) => {
  const { beginSweeps, history } = dependencies;
  const openRun = createOpenRun(dependencies);
  const openEvaluation = createOpenEvaluation(dependencies);
  const openPromptSearch = createOpenPromptSearch(dependencies);
  const leaseGroups = createLeaseGroups(dependencies);
  return {
    openRun: async (...asked: Parameters<typeof openRun>) => {
      const opened = await openRun(...asked);
      const [, workflow, execution] = asked;
      const who = await recordAround({ ...opened.handle, kind: 'run' }, history, { workflow, execution });
      await sweepsFor(opened.spec.environments, opened.handle.store, beginSweeps);
      return who === null ? opened : { ...opened, owner: { who, team: teamNamedBy(opened.spec) } };
    },
    readSpec,
    checkRewind,
    setBudget,
    ...createRecords(history),
    checkBehind,
    beginLineage,
    leaseGroups,
    reopenRounds,
    filterGroups: filterAgain,
    packBatch: createPackBatch(leaseBeside('pack', leaseGroups)),
    commitStep: createCommitStep(dependencies.codeVersion),
    auditRun,
    broadcastWeights: createBroadcastWeights(dependencies.inference, leaseBeside('broadcast', leaseGroups)),
    saveCheckpoint,
    nextTrainerEpoch,
    findUnpublished,
    tellStanding,
    describeTurn,
    describeTrainers: createDescribeTrainers(dependencies.findTrainers),
    planEvaluations: createPlanEvaluations(dependencies),
    openEvaluation: async (asked: Parameters<typeof openEvaluation>[0]) => {
      await sweepsFor([asked.input.environment], asked.input.results.store, beginSweeps);
      const opened = await openEvaluation(asked);
      // An evaluation that a run begins stands in that run's own changes.
      if (asked.input.notify === undefined)
        await recordAround({ kind: 'evaluation', place: opened.place }, history, executionHere());
      return opened;
    },
    noteProgress: createNoteProgress({}),
    closeEvaluation: createCloseEvaluation({}),
    openRescore: recordingRescore(createOpenRescore(dependencies), history),
    closeRescore,
    planPromptSearch: createPlanPromptSearch(dependencies),
    openPromptSearch: async (asked: Parameters<typeof openPromptSearch>[0]) => {
      await sweepsFor(asked.input.environments, asked.input.results.store, beginSweeps);
      const opened = await openPromptSearch(asked);
      if (asked.input.notify === undefined)
        await recordAround({ kind: 'search', place: opened.place }, history, executionHere());
      return opened;
    },
    openTrial: createOpenTrial(dependencies),
    recordTrial,
    writePrompts: createWritePrompts(),
    closePromptSearch: createClosePromptSearch(),
    planNewest: createPlanNewest(dependencies),
    judgeEvaluation,
    holdVersion: createHoldVersion(dependencies.inference),
    leaveServers: createLeaveServers(dependencies.inference),
    findEvaluation,
    recordEvaluation: createRecordEvaluation(dependencies.inference),
    measureSweepRun,
    sweepSandboxes: createSweepSandboxes(dependencies),
  };
};
export type OrchestratorActivities = ReturnType<typeof createOrchestratorActivities>;
