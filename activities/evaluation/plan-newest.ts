import type { JsonValue } from '../../config/run-spec.ts';
import { grantByFile, namedByEnvironments } from '../../load/grants/grant.ts';
import { loadEvaluationFile } from '../../load/evaluations/load-evaluations.ts';
import { withHeartbeat } from '../around/heartbeat.ts';
import type { RunPlace } from '../../runs/run-access.ts';
import { type CheckpointPlan, newestSealed, planCheckpoints } from '../../runs/evaluations/checkpoint-evaluations.ts';

interface PlanNewestInput {
  readonly run: RunPlace;
  /** A file of evaluations, whose models are ignored; null = the run's own `[eval]`. */
  readonly config: string | null;
}

/** Evaluations due for a run's newest sealed checkpoint. */
export const createPlanNewest =
  ({ projectFolder }: { readonly projectFolder: string }) =>
  async ({ run, config }: PlanNewestInput): Promise<CheckpointPlan['evaluations']> =>
    withHeartbeat(async () => {
      const choice = { steps: [await newestSealed(run)], includesBase: false };
      if (config === null) return (await planCheckpoints(run, choice, { kind: 'own', settings: {} })).evaluations;
      const over: Record<string, JsonValue> = { model: run.name, provider: 'local' };
      const { evaluations } = await loadEvaluationFile(config, { projectFolder, over });
      // The overlay only names the model.
      grantByFile(namedByEnvironments(evaluations.map(({ input }) => input.environment)), true);
      const subject = { kind: 'planned' as const, evaluations: evaluations.map(({ input }) => input) };
      return (await planCheckpoints(run, choice, subject)).evaluations;
    });
