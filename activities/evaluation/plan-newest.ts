import type { JsonValue } from '../../config/run-spec.ts';
import { grantByFile, namedByEnvironments } from '../../backends/configs/grant.ts';
import { loadEvaluationFile } from '../../backends/configs/load-evaluations.ts';
import { withHeartbeat } from '../around/heartbeat.ts';
import type { RunPlace } from '../../runs/run-access.ts';
import { type CheckpointPlan, newestSealed, planCheckpoints } from '../../runs/checkpoint-evaluations.ts';

interface PlanNewestInput {
  readonly run: RunPlace;
  /** A file of evaluations, whose models are of no matter; null = as the run's own `[eval]` says. */
  readonly config: string | null;
}

/** What is to be evaluated of a run's newest sealed checkpoint, now. */
export const createPlanNewest =
  ({ projectFolder }: { readonly projectFolder: string }) =>
  async ({ run, config }: PlanNewestInput): Promise<CheckpointPlan['evaluations']> =>
    withHeartbeat(async () => {
      const choice = { steps: [await newestSealed(run)], includesBase: false };
      if (config === null) return (await planCheckpoints(run, choice, { kind: 'own', settings: {} })).evaluations;
      const over: Record<string, JsonValue> = { model: run.name, provider: 'local' };
      const { evaluations } = await loadEvaluationFile(config, { projectFolder, over });
      // What is laid over it names the model alone.
      grantByFile(namedByEnvironments(evaluations.map(({ input }) => input.environment)), true);
      const subject = { kind: 'planned' as const, evaluations: evaluations.map(({ input }) => input) };
      return (await planCheckpoints(run, choice, subject)).evaluations;
    });
