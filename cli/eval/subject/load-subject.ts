import type { EvaluationInput } from '../../../core/eval/evaluation.ts';
import type { JsonValue } from '../../../config/run-spec.ts';
import {
  type LoadedEvaluations,
  loadEvaluationFile,
  loadNamedEvaluations,
  type PlannedEvaluation,
} from '../../../load/evaluations/load-evaluations.ts';
import { namesOf } from '../../output/names-of.ts';
import { versionOfRun } from './version-of-run.ts';
import type { EvalRunOptions } from '../run-options.ts';

/** A file, or one or several environments by their ids. */
export async function load(
  what: string,
  over: Record<string, JsonValue>,
  options: EvalRunOptions,
  projectFolder: string,
): Promise<LoadedEvaluations> {
  const reading = { projectFolder, over, builtin: options.builtin === true };
  if (isFile(what)) return loadEvaluationFile(what, reading);
  const loaded = await loadNamedEvaluations(namesOf(what), reading);
  if (options.run === undefined) return loaded;
  const fields = (loaded.evaluations[0]!.input.model as { sampling: Record<string, JsonValue> }).sampling;
  const model = await versionOfRun(options.run, { step: options.step, store: options.store, sampling: fields });
  if (options.serve !== undefined)
    return withModel(loaded, ({ input }) => ({ ...input, model: servedLater(input, model.model) }));
  return withModel(loaded, ({ input }) => ({ ...input, model }));
}

export function isFile(what: string): boolean {
  return what.endsWith('.toml');
}

function withModel(
  { evaluations, warnings }: LoadedEvaluations,
  change: (one: PlannedEvaluation) => PlannedEvaluation['input'],
): LoadedEvaluations {
  return { warnings, evaluations: evaluations.map((one) => ({ ...one, input: change(one) })) };
}

function servedLater(input: PlannedEvaluation['input'], model: string): EvaluationInput['model'] {
  return { ...(input.model as Extract<EvaluationInput['model'], { kind: 'endpoint' }>), model, servers: [] };
}
