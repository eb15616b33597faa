import path from 'node:path';
import { serversOfModel } from '../../core/eval/model-servers.ts';
import { leastBudget } from '../../core/gepa/settings.ts';
import { systemPrompt } from '../../core/gepa/prompt-parts.ts';
import type { PromptSearchInput } from '../../core/gepa/prompt-search.ts';
import { RatchetError } from '../../core/errors.ts';
import type { GepaSpec } from '../../config/searches/gepa-spec.ts';
import type { ModelAccessSpec } from '../../config/models/model-access.ts';
import { parseGepaFile } from '../../config/searches/parse-gepa-file.ts';
import { refuseRunFile } from '../../config/parse-config-file.ts';
import { parseToml, type TomlFile } from '../../config/toml/parse-toml.ts';
import { ConfigProblems } from '../../config/toml/problems.ts';
import { present } from '../../core/present.ts';
import { trustedFile } from '../../host/trusted-files.ts';
import { findEvaluatedEnvironment } from '../evaluations/evaluated-environment.ts';
import { ofRegistry, readRegistry, withRegistryOf } from '../evaluations/load-evaluations.ts';
import { readRegularText, whyUnreadable } from '../../host/regular-file.ts';
import { tellsContent, withoutContent } from '../../backends/untold.ts';

interface LoadPromptSearchOptions {
  /** Folder for relative paths. */
  readonly projectFolder: string;
  /** Dotted keys as on the command line. */
  readonly overrides?: Readonly<Record<string, string>> | undefined;
  /** Variables that every environment sees, besides those that the file lists. */
  readonly variables?: readonly string[] | undefined;
  /** Whether a very small budget is intended. */
  readonly isSmallBudgetMeant?: boolean | undefined;
  /** OWNER/NAME is the environment NAME that comes with Ratchet. */
  readonly builtin?: boolean | undefined;
  /** Whether a variable with a key is set; its value is not read here. */
  readonly isSet?: (variable: string) => boolean;
}

/** A search that is read and resolved, except for the place of its results. */
export interface PlannedPromptSearch {
  readonly spec: GepaSpec;
  readonly input: Omit<PromptSearchInput, 'results'>;
  readonly warnings: readonly string[];
  /** Lines for the user on how environments were found. */
  readonly said: readonly string[];
}

/** A file of prompt optimization. Throws `ConfigProblems` and `ConfigInvalid`. */
export async function loadPromptSearchFile(
  file: string,
  options: LoadPromptSearchOptions,
): Promise<PlannedPromptSearch> {
  const absolute = path.resolve(options.projectFolder, file);
  const text = await readRegularText(trustedFile(absolute, 'The file of a prompt search')).catch((cause: unknown) => {
    const place = { file, line: null, column: null, path: '' };
    const received = `${whyUnreadable(cause)}: ${absolute}`;
    throw new ConfigProblems([{ ...place, expected: 'a TOML file with [gepa] and [env]', received }]);
  });
  const toml = parseToml(text, file);
  refuseRunFile(toml, 'a file of a prompt search');
  return loadPromptSearch(toml, options);
}

/** The same for a parsed file. */
export async function loadPromptSearch(
  toml: TomlFile,
  {
    projectFolder,
    overrides,
    variables: forAll = [],
    isSmallBudgetMeant = false,
    builtin = false,
    isSet = isInEnvironment,
  }: LoadPromptSearchOptions,
): Promise<PlannedPromptSearch> {
  const { file } = toml;
  const parsed = parseGepaFile(toml, { file, ...present({ overrides }) });
  if (!parsed.ok) {
    const isTold = tellsContent() || parseGepaFile(toml, { file }).ok;
    throw isTold ? new ConfigProblems(parsed.problems) : withoutContent(parsed.problems, 'a file of a prompt search');
  }
  const { warnings } = parsed;
  const isTyped = overrides?.['endpoints_path'] !== undefined;
  const spec = { ...parsed.spec, model: withRegistryOf(isTyped ? null : file, parsed.spec.model, projectFolder) };
  if (!isSmallBudgetMeant) requireBudget(spec);
  const registry = await readRegistry(path.resolve(projectFolder, spec.model.endpointsPath));
  const serversOf = (access: ModelAccessSpec) => {
    const servers = serversOfModel(access, registry, isSet);
    if (!servers.ok) throw new RatchetError('ConfigInvalid', `${file}: ${ofRegistry(servers.problem, access)}.`);
    return servers;
  };
  const found = await Promise.all(
    spec.environments.map(({ id, name, args, extraKwargs, variables }) => {
      const environment = {
        id,
        name,
        args,
        extraKwargs,
        variables: [...variables, ...forAll],
        folder: spec.environmentsFolder,
        taskset: null,
        harness: null,
      };
      return findEvaluatedEnvironment({ environment }, { projectFolder, builtin });
    }),
  );
  const { model, servers } = serversOf(spec.model);
  const reflection = serversOf({ ...spec.model, model: spec.reflectionModel ?? spec.model.model });
  const input: Omit<PromptSearchInput, 'results'> = {
    environments: found.map(({ environment }) => environment),
    model: { kind: 'endpoint', model, servers, sampling: spec.sampling },
    reflection: { model: reflection.model, servers: reflection.servers, fields: {} },
    maxCalls: spec.maxCalls,
    ...present({ maxReflections: spec.maxReflections ?? undefined }),
    minibatchSize: spec.minibatchSize,
    perfectScore: spec.perfectScore,
    stateColumns: spec.stateColumns,
    numTrain: spec.numTrain,
    numVal: spec.numVal,
    numTest: spec.numTest,
    maxConcurrent: spec.maxConcurrent,
    seed: spec.seed,
    isClassic: spec.classic,
    initialPrompt: spec.initialPrompt,
    ...(spec.components.join() === systemPrompt ? {} : { components: spec.components }),
    ...(spec.merge ? { merges: true } : {}),
    ...(Object.keys(spec.tuning).length === 0 ? {} : { tuning: spec.tuning }),
    savesResults: spec.savesResults,
    ...limitsOf(spec, reflection.model === model),
    isSmallBudgetMeant,
  };
  return { spec, input, warnings, said: found.flatMap(({ said }) => said ?? []) };
}

function limitsOf(
  { budget, prices, reflectionPrices }: GepaSpec,
  isOneModel: boolean,
): Pick<PromptSearchInput, 'budget' | 'prices'> {
  const reflection = reflectionPrices ?? (isOneModel ? prices : undefined) ?? null;
  return { ...present({ budget }), ...(prices && { prices: { model: prices, reflection } }) };
}

function isInEnvironment(variable: string): boolean {
  return (process.env[variable] ?? '') !== '';
}

/**
 * Refuses a budget with which a search tries next to nothing, since its end would look like a success without a find.
 */
function requireBudget({ maxCalls, minibatchSize, numVal }: GepaSpec): void {
  if (numVal < 0) return; // how many there are shows when the dataset is open
  const least = leastBudget({ valSize: numVal, minibatchSize });
  if (maxCalls >= least.calls) return;
  throw tooSmallBudget(maxCalls, least.arithmetic);
}

export function tooSmallBudget(maxCalls: number, arithmetic: string): RatchetError {
  return new RatchetError(
    'ConfigInvalid',
    `A budget of ${maxCalls} calls tries next to nothing: ${arithmetic}. Raise --max-calls, take fewer validation examples (--num-val), or say --yes if it is meant.`,
  );
}
