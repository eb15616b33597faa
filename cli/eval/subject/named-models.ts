import type { EvaluatedEnvironment, EvaluatedModel, EvaluationInput } from '../../../core/eval/evaluation.ts';
import { namedByEnvironments, namedByInference, namedByModel } from '../../../load/grants/grant.ts';
import { codeOf, type CodeRef, type RunSpec } from '../../../config/run-spec.ts';
import { isEnvironmentFile } from '../../../core/names.ts';
import { digestOf } from '../../../host/trusted-files.ts';
import { linesOfStore } from '../../../store/index.ts';
import { type RunPlace, specOf } from '../../../runs/run-access.ts';
import { askGrants, type GrantOptions } from '../../start/ask-grants.ts';
import { isTypedStore } from '../../stored/run-place.ts';

/** Servers and stores that a command itself names with the models it evaluates. */
export function typedByModels(
  models: readonly EvaluatedModel[],
  options: { readonly store?: string | undefined },
): string[] {
  return models.flatMap((model) =>
    model.kind === 'endpoint' || isTypedStore(model.run, options.store) ? namedByModel(model) : [],
  );
}

/**
 * Asks once for grants that evaluating versions of a run needs and that its folder names: its servers, and its own
 * environments.
 */
export async function askForVersions(
  models: readonly EvaluatedModel[],
  environments: readonly EvaluatedEnvironment[],
  options: GrantOptions & { readonly store?: string | undefined },
): Promise<void> {
  const runs = new Map<string, Extract<EvaluatedModel, { kind: 'version' }>['run']>();
  for (const model of models) {
    if (model.kind === 'version') runs.set(`${model.run.store}${model.run.name}/${model.run.spec.sha256}`, model.run);
  }
  const [place] = runs.values();
  if (place === undefined) return;
  const specs = await Promise.all([...runs.values()].map(specOf));
  const lines = [
    ...namedByEnvironments(environments),
    ...specs.flatMap(namedByInference),
    ...linesOfFoundStore(place, options.store),
  ];
  const endpoints = specs.flatMap(({ inference }) => ('endpoints' in inference && inference.endpoints) || []);
  const code = [...filesOf(environments), ...specs.flatMap(moduleOf)];
  await askGrants(place, { lines, environments, endpoints, code }, options);
}

function filesOf(environments: readonly EvaluatedEnvironment[]): CodeRef[] {
  return environments.map(({ id, sha256 = null }) => ({ path: id, sha256 }));
}

function moduleOf({ inference }: RunSpec): CodeRef[] {
  return [codeOf(inference) ?? []].flat();
}

/** An environment's file without a recorded digest is loaded as it was when the grant was asked for. */
function asItIsNow<Input extends Evaluated>(input: Input): Input {
  const { environment } = input;
  if (!isEnvironmentFile(environment.id) || environment.sha256 !== undefined) return input;
  const sha256 = digestOf(environment.id);
  return sha256 === null ? input : { ...input, environment: { ...environment, sha256 } };
}

/** A typed subject has the environments of this command. Everything else comes from the run's folder. */
export async function askForPlan(
  inputs: readonly Evaluated[],
  { isTyped }: { readonly isTyped: boolean },
  options: Parameters<typeof askForVersions>[2],
): Promise<void> {
  const environments = isTyped ? [] : inputs.map(({ environment }) => environment);
  await askForVersions(modelsOf(inputs), environments, options);
}

/**
 * Resolves names again right before generation, since the run's folder may have changed, and has exactly those weights
 * loaded.
 */
export async function inputsToPlay<Input extends Evaluated>(
  inputs: readonly Input[],
  subject: { readonly isTyped: boolean },
  options: Parameters<typeof askForVersions>[2],
): Promise<Input[]> {
  await askForPlan(inputs, subject, options);
  return inputs.map(asItIsNow);
}

/** The grant lines that the command line itself names. */
export function typedByPlan(inputs: readonly Planned[], { isTyped, store }: TypedOfPlan): string[] {
  const environments = isTyped ? inputs.map(({ environment }) => environment) : [];
  const isBesideRun = ({ model, results }: Planned): boolean =>
    model.kind !== 'endpoint' && model.run.store === results.store;
  const results = inputs.filter((input) => !isBesideRun(input)).flatMap((input) => linesOfStore(input.results.store));
  return [...namedByEnvironments(environments), ...typedByModels(modelsOf(inputs), { store }), ...results];
}

/** The parts of a plan that were typed. */
export interface TypedOfPlan {
  /** Whether the environments were typed on the command line. */
  readonly isTyped: boolean;
  /** The value of `--store`. */
  readonly store: string | undefined;
}

type Evaluated = Pick<EvaluationInput, 'environment' | 'model'>;
type Planned = Pick<EvaluationInput, 'environment' | 'model' | 'results'>;

function modelsOf(inputs: readonly Evaluated[]): EvaluatedModel[] {
  return inputs.map(({ model }) => model);
}

/** An untyped store comes from the running run's answer, and anyone may have started that run. */
export function linesOfFoundStore(place: RunPlace, typed: string | undefined): string[] {
  return isTypedStore(place, typed) ? [] : linesOfStore(place.store);
}
