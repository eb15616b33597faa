import { createHash } from 'node:crypto';
import type { EvaluationFileInput, EvaluationInput } from '../../core/eval/evaluation.ts';
import { RatchetError } from '../../core/errors.ts';
import { evaluationsInFileMax } from '../../core/limits.ts';
import { choosePlace, placeName } from '../../load/evaluations/evaluation-folders.ts';
import { grantByFile, namedByEnvironments, namedByModel } from '../../load/grants/grant.ts';
import { loadEvaluationFile } from '../../load/evaluations/load-evaluations.ts';
import { linesOfStore } from '../../store/index.ts';
import { withHeartbeat } from '../around/heartbeat.ts';

interface PlanEvaluationsInput extends EvaluationFileInput {
  /** Requester, `WORKFLOW_ID/EXECUTION_ID`. */
  readonly request: string;
}

interface PlanDependencies {
  readonly projectFolder: string;
  readonly isWorkflowRunning: (workflowId: string) => Promise<boolean>;
}

/**
 * Reads a file of evaluations, and decides the place of each one's results: an interrupted evaluation, or a new one.
 */
export const createPlanEvaluations =
  (dependencies: PlanDependencies) =>
  async ({
    config,
    over,
    goOn = 'interrupted',
    request,
  }: PlanEvaluationsInput): Promise<{ inputs: EvaluationInput[]; warnings: readonly string[] }> =>
    withHeartbeat(async () => {
      const { projectFolder } = dependencies;
      const { evaluations, warnings } = await loadEvaluationFile(config, { projectFolder, over });
      const named = evaluations.flatMap(({ input: { environment, model } }) => [
        ...namedByEnvironments([environment]),
        ...namedByModel(model),
      ]);
      const isAsItStands = Object.keys(over ?? {}).length === 0;
      grantByFile(named, isAsItStands);
      if (evaluations.length > evaluationsInFileMax) {
        throw new RatchetError(
          'ConfigInvalid',
          `${config} has ${evaluations.length} evaluations; at most ${evaluationsInFileMax} go into one. Divide the file.`,
        );
      }
      const inputs: EvaluationInput[] = [];
      for (const [i, planned] of evaluations.entries()) {
        const { place: results } = await choosePlace(planned, {
          projectFolder,
          goOn,
          // Derived from the request, so that repeating it gives the same id.
          newId: createHash('sha256').update(`${request}/${i}`).digest('hex').slice(0, 8),
          taken: new Set(inputs.map((input) => placeName(input.results))),
          isHeld: async (holder) => !request.startsWith(holder) && dependencies.isWorkflowRunning(holder),
        });
        grantByFile(linesOfStore(results.store), isAsItStands);
        inputs.push({ ...planned.input, results });
      }
      return { inputs, warnings };
    });
