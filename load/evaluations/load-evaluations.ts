import { present } from '../../core/present.ts';
import { existsSync } from 'node:fs';
import path from 'node:path';
import type { EvaluatedEnvironment, EvaluatedServer, EvaluationInput } from '../../core/eval/evaluation.ts';
import { serversOfModel } from '../../core/eval/model-servers.ts';
import { RatchetError } from '../../core/errors.ts';
import { evaluationStandstillS } from '../../core/limits.ts';
import type { EndpointsSpec } from '../../config/models/endpoints-spec.ts';
import { evaluationDefaults, type EvaluationSpec } from '../../config/evaluations/eval-file.ts';
import { parseEndpoints } from '../../config/models/parse-endpoints.ts';
import { parseEvalFile } from '../../config/evaluations/parse-eval-file.ts';
import type { JsonValue } from '../../config/run-spec.ts';
import { trustedFile } from '../../host/trusted-files.ts';
import { grantByFile, namedByServers } from '../grants/grant.ts';
import { findEvaluatedEnvironment, withPrompt } from './evaluated-environment.ts';
import { evaluationDefaultsOf } from './evaluation-defaults.ts';
import { readRegularText, whyUnreadable } from '../../host/regular-file.ts';
import { howToBeTold, problemsToTell, tellsContent } from '../../backends/untold.ts';

interface LoadEvaluationsOptions {
  /** Folder for relative paths. */
  readonly projectFolder: string;
  /** Settings in the file's words that override it. */
  readonly over?: Readonly<Record<string, JsonValue>> | undefined;
  /** Whether `owner/name` may be the built-in environment of that name. */
  readonly builtin?: boolean | undefined;
  /** Whether a variable with a key is set; its value is not read here. */
  readonly isSet?: (variable: string) => boolean;
}

/** An evaluation that is read and resolved, except for the place of its results. */
export interface PlannedEvaluation {
  readonly spec: EvaluationSpec;
  readonly input: Omit<EvaluationInput, 'results'>;
  /** How the environment was found, for people. */
  readonly said: string | null;
}

export interface LoadedEvaluations {
  readonly evaluations: readonly PlannedEvaluation[];
  readonly warnings: readonly string[];
}

/** A file of evaluations. Throws `ConfigProblems` and `ConfigInvalid`, naming all problems at once. */
export async function loadEvaluationFile(file: string, options: LoadEvaluationsOptions): Promise<LoadedEvaluations> {
  const absolute = path.resolve(options.projectFolder, file);
  const text = await readRegularText(trustedFile(absolute, 'The file of evaluations')).catch((cause: unknown) => {
    const place = { file, line: null, column: null, path: '' };
    const received = `${whyUnreadable(cause)}: ${absolute}`;
    const expected = 'a TOML file with [[eval]]';
    throw problemsToTell([{ ...place, expected, received }], expected, true);
  });
  return loadEvaluations(text, file, options);
}

/** The same of environments that a command line names, by their ids. */
export function loadNamedEvaluations(
  ids: readonly string[],
  options: LoadEvaluationsOptions,
): Promise<LoadedEvaluations> {
  const text = ids.map((id) => `[[eval]]\nid = ${JSON.stringify(id)}\n`).join('\n');
  return loadEvaluations(text, 'command line', options);
}

/** The same of a text; `file` appears in errors. */
async function loadEvaluations(
  text: string,
  file: string,
  {
    projectFolder,
    over = {},
    builtin = false,
    isSet = (variable) => (process.env[variable] ?? '') !== '',
  }: LoadEvaluationsOptions,
): Promise<LoadedEvaluations> {
  const parsed = parseEvalFile(text, { file, settings: over });
  if (!parsed.ok) {
    const isValid = parseEvalFile(text, { file, settings: {} }).ok;
    throw problemsToTell(parsed.problems, 'a file of evaluations', isValid);
  }
  const asItStands = parseEvalFile(text, { file, settings: {} });
  const ownPrompts = asItStands.ok
    ? asItStands.spec.evaluations.map(({ environment }) => environment.systemPrompt)
    : [];
  const problems: string[] = [];
  const warnings = [...parsed.warnings];
  const registries = new Map<string, EndpointsSpec | null>();
  const planned: PlannedEvaluation[] = [];
  const isTyped = over['endpoints_path'] !== undefined;
  for (const written of parsed.spec.evaluations) {
    const spec = { ...written, model: withRegistryOf(isTyped ? null : file, written.model, projectFolder) };
    const { name } = spec.environment;
    try {
      const { environment: found, said } = await findEvaluatedEnvironment(spec, { projectFolder, builtin });
      const environment = await withPrompt(found, spec.environment.systemPrompt, { projectFolder, ownPrompts });
      const endpointsPath = path.resolve(projectFolder, spec.model.endpointsPath);
      if (!registries.has(endpointsPath)) registries.set(endpointsPath, await readRegistry(endpointsPath));
      const servers = serversOfModel(spec.model, registries.get(endpointsPath) ?? null, isSet);
      if (!servers.ok) throw new RatchetError('ConfigInvalid', `${name}: ${ofRegistry(servers.problem, spec.model)}.`);
      warnings.push(...unheeded(spec, environment));
      const input = await inputOf(spec, withColumns(environment, spec.stateColumns), servers);
      planned.push({ spec, said, input });
    } catch (error) {
      if (!(error instanceof RatchetError)) throw error;
      problems.push(error.message);
    }
  }
  if (problems.length > 0) throw new RatchetError('ConfigInvalid', [...new Set(problems)].join('\n'));
  return { evaluations: planned, warnings: [...new Set(warnings)] };
}

async function inputOf(
  spec: EvaluationSpec,
  environment: EvaluatedEnvironment,
  { model, servers }: { readonly model: string; readonly servers: readonly EvaluatedServer[] },
): Promise<Omit<EvaluationInput, 'results'>> {
  const defaults = await evaluationDefaultsOf(environment.python);
  const { timeoutS } = spec;
  return {
    environment: timeoutS === null ? environment : withTimeout(environment, timeoutS),
    model: { kind: 'endpoint', model, servers, sampling: spec.sampling },
    numExamples: spec.numExamples ?? defaults.numExamples ?? evaluationDefaults.numExamples,
    rolloutsPerExample: spec.rolloutsPerExample ?? defaults.rolloutsPerExample ?? evaluationDefaults.rolloutsPerExample,
    seed: 0,
    shuffleSeed: spec.shuffle ? spec.shuffleSeed : null,
    maxConcurrent: spec.maxConcurrent,
    independentScoring: spec.independentScoring,
    maxRetries: spec.maxRetries,
    standstillS: Math.max(timeoutS ?? 0, evaluationStandstillS),
    ...present({ budget: spec.budget, prices: spec.prices }),
  };
}

/** Only verifiers' own API before 1 has a state. */
function withColumns(environment: EvaluatedEnvironment, columns: readonly string[]): EvaluatedEnvironment {
  if (columns.length === 0 || environment.python?.api !== 'v0') return environment;
  return { ...environment, stateColumns: columns };
}

/** Same as vf-eval: the environment itself ends rollouts that take longer, and scores them. */
function withTimeout(environment: EvaluatedEnvironment, seconds: number): EvaluatedEnvironment {
  if (environment.python === undefined) return environment;
  return { ...environment, extra: { ...environment.extra, timeout_seconds: seconds } };
}

/**
 * Problem with a model's servers, without the registry's contents: any file of the project may have been named as the
 * registry, so aliases are shown only to trusted users.
 */
export function ofRegistry(problem: string, { endpointId, endpointsPath }: EvaluationSpec['model']): string {
  if (tellsContent()) return problem;
  const expected = endpointId === null ? 'servers that are spoken to here' : `the alias "${endpointId}"`;
  return `expected ${expected} in its settings or in ${endpointsPath}, found none; ${howToBeTold}`;
}

/** Registry of endpoints; null without one, since aliases are optional. */
/**
 * Adds the registry that a file refers to: relative to the file's folder, as in verifiers, if it exists there; else
 * relative to the project's folder.
 */
export function withRegistryOf(
  file: string | null,
  model: EvaluationSpec['model'],
  projectFolder: string,
): EvaluationSpec['model'] {
  if (file === null) return model;
  const beside = path.resolve(projectFolder, path.dirname(file), model.endpointsPath);
  const isBeside = namesOfRegistry(beside).some((name) => existsSync(name));
  return isBeside ? { ...model, endpointsPath: path.relative(projectFolder, beside) } : model;
}

/** An older registry is a file of Python. */
function namesOfRegistry(file: string): string[] {
  return [file, file.replace(/\.toml$/, '.py')];
}

export async function readRegistry(file: string): Promise<EndpointsSpec | null> {
  for (const candidate of namesOfRegistry(file)) {
    const text = await readRegularText(trustedFile(candidate, 'The endpoints file')).catch(() => null);
    if (text === null) continue;
    const parsed = parseEndpoints(text, { file: candidate });
    if (!parsed.ok) throw problemsToTell(parsed.problems, 'a registry of endpoints');
    grantByFile(
      parsed.spec.endpoints.flatMap(({ replicas }) => namedByServers(replicas)),
      true,
    );
    return parsed.spec;
  }
  return null;
}

/** Settings that are read but have no effect here. */
function unheeded(
  { hub, numWorkers, environment: { name }, model, stateColumns }: EvaluationSpec,
  { python }: EvaluatedEnvironment,
): string[] {
  const fromState = Object.entries(model.headersFromState).filter(
    ([header, column]) => !(header.toLowerCase() === 'x-session-id' && column === 'trajectory_id'),
  );
  return [
    ...(stateColumns.length === 0 || python?.api === 'v0'
      ? []
      : [
          `${name}: state_columns (${stateColumns.join(', ')}) have no effect: an environment ${python ? 'of verifiers v1' : 'in TypeScript'} has no state to take them from`,
        ]),
    ...(hub === null ? [] : [`${name}: save_to_hf_hub: nothing is uploaded; the results are in the folder`]),
    ...(numWorkers === null
      ? []
      : [`${name}: num_workers has no effect: RATCHET_PYTHON_CHILDREN says how many Python processes a worker has`]),
    ...(fromState.length === 0
      ? []
      : [
          `${name}: headers from the state (${fromState.map(([header]) => header).join(', ')}) are not sent, but X-Session-ID, which names the rollout`,
        ]),
  ];
}
