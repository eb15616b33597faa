import { createHash } from 'node:crypto';
import type { EvaluationFileInput, EvaluationInput } from '../../core/eval/evaluation.ts';
import { RatchetError } from '../../core/errors.ts';
import { evaluationsInFileMax } from '../../core/limits.ts';
import {
  evaluationsFolder,
  evaluationsIn,
  isInterrupted,
  isUnfinished,
  placeAt,
  placeIn,
} from '../../backends/configs/evaluation-folders.ts';
import { loadEvaluationFile, type PlannedEvaluation } from '../../backends/configs/load-evaluations.ts';
import { withHeartbeat } from '../heartbeat.ts';

export interface PlanEvaluationsInput extends EvaluationFileInput {
  /** Who asks, `WORKFLOW_ID/EXECUTION_ID`. */
  readonly request: string;
}

interface PlanDependencies {
  readonly projectFolder: string;
  readonly isWorkflowRunning: (workflowId: string) => Promise<boolean>;
}

/** Reads a file of evaluations, and decides where each one's results go: with what of it was interrupted, or anew. */
export const createPlanEvaluations =
  (dependencies: PlanDependencies) =>
  async ({
    config,
    overrides,
    goOn = 'interrupted',
    request,
  }: PlanEvaluationsInput): Promise<{ inputs: EvaluationInput[]; warnings: readonly string[] }> =>
    withHeartbeat(async () => {
      const { projectFolder } = dependencies;
      const { evaluations, warnings } = await loadEvaluationFile(config, { projectFolder, overrides });
      if (evaluations.length > evaluationsInFileMax) {
        throw new RatchetError(
          'ConfigInvalid',
          `${config} has ${evaluations.length} evaluations; at most ${evaluationsInFileMax} go into one. Divide the file.`,
        );
      }
      const inputs: EvaluationInput[] = [];
      for (const [i, planned] of evaluations.entries()) {
        const taken = new Set(inputs.map(({ results }) => `${results.store}${results.name}`));
        inputs.push(await withPlace(dependencies, planned, { goOn, request: `${request}/${i}`, taken }));
      }
      return { inputs, warnings };
    });

async function withPlace(
  { projectFolder, isWorkflowRunning }: PlanDependencies,
  { spec, input }: PlannedEvaluation,
  asked: { readonly goOn: NonNullable<EvaluationFileInput['goOn']>; readonly request: string; readonly taken: ReadonlySet<string> }, // prettier-ignore
): Promise<EvaluationInput> {
  if (spec.resume !== null && spec.resume !== 'newest') {
    return { ...input, results: placeAt(spec.resume.path, projectFolder) };
  }
  const folder = evaluationsFolder(spec, input.model.model, projectFolder);
  const own = createHash('sha256').update(asked.request).digest('hex').slice(0, 8);
  const goOn = spec.resume === 'newest' ? 'unfinished' : asked.goOn;
  const fits = goOn === 'unfinished' ? isUnfinished : isInterrupted;
  for (const found of goOn === 'never' ? [] : await evaluationsIn(folder)) {
    const results = placeIn(folder, found.id);
    if (!fits(found, input) || asked.taken.has(`${results.store}${results.name}`)) continue;
    const holder = found.stored!.request.split('/', 1)[0]!;
    if (!asked.request.startsWith(`${holder}/`) && (await isWorkflowRunning(holder))) continue; // it is at work on it
    return { ...input, results };
  }
  return { ...input, results: placeIn(folder, own) };
}
