import { environmentTraits } from '../../core/kinds/environments.ts';
import { RatchetError } from '../../core/errors.ts';
import { isEnvironmentFile } from '../../core/names.ts';
import { ConfigProblems, type Problem, type ReadAs } from '../../config/toml/problems.ts';
import type { Advice, MissingEnvironment } from '../../config/run-config.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { MemoryTooSmall } from '../../engine/sample/server-memory.ts';
import { openEnvironment } from '../../backends/environments/index.ts';
import { whatIsLacking } from '../../backends/environments/what-is-lacking.ts';
import { missingAgentKeys, missingVariables, variablesFor } from '../../backends/environments/variables.ts';
import type { Environment } from '../../backends/environments/types.ts';
import { isFetched, notHere } from './model-of-hub.ts';
import { turnsOf } from './turns-of.ts';
import { ContextTooSmall } from './check-context.ts';
import { checkModel, type ModelSize } from './check-model.ts';
import { tooSlowHere, warningsBefore } from './warnings-before.ts';
import { checkTemplate } from './check-template.ts';
import { type LoadedConfig, loadRunConfig, type LoadOptions } from '../load-run-config.ts';

/** Reason why a correct run file cannot be trained here. */
export interface Obstacle {
  readonly about: 'model' | 'environment' | 'machine';
  readonly says: string;
  /** Remedies, in the order of their steps. */
  readonly remedies: readonly string[];
}

/** Report on a run file, made without starting anything. */
export interface RunFileReport {
  readonly file: string;
  /** null when the dialect could not be determined. */
  readonly readAs: ReadAs | null;
  /** Everything that is wrong with it, in the order of the file. */
  readonly problems: readonly Problem[];
  readonly warnings: readonly string[];
  readonly advice: readonly Advice[];
  readonly obstacles: readonly Obstacle[];
  /** null when there are problems. */
  readonly loaded: LoadedConfig | null;
  /** null when the model is not here. */
  readonly model: ModelSize | null;
  /** Opened environments by name. */
  readonly environments: ReadonlyMap<string, Environment>;
  /** Environments that would run code from the file, and were not opened. */
  readonly notImported: readonly NotImported[];
}

/** An environment that was not loaded: its name, the code of the file it would run, and the checks left out. */
interface NotImported {
  readonly name: string;
  readonly runs: string;
  readonly unchecked: string;
}

interface ExamineOptions extends LoadOptions {
  /** Whether to import code that the file names, which may be a stranger's. */
  readonly imports?: boolean;
  /** The file, if it was examined before. */
  readonly looked?: LoadedConfig | null;
}

/** Code of the file that opening an environment would run; null for built-in ones. */
export function runsOfFile({
  id,
  args,
  python,
}: Pick<RunSpec['environments'][number], 'id' | 'args' | 'python'>): string | null {
  if (python !== undefined) return `the Python package ${id} in ${python.folder}`;
  if (isEnvironmentFile(id)) return id;
  // Environments with Python for the model start the interpreter named in their arguments.
  return args['python'] === undefined ? null : `the interpreter ${JSON.stringify(args['python'])}`;
}

/** Wraps the opening of an environment, which may take long, by its id. */
type Opening = <T>(id: string, open: () => Promise<T>) => Promise<T>;

/**
 * Reads a run file and examines what it names. Fetches nothing, and without `imports` runs no code that the file names,
 * since the reader may not trust it yet. Makes no datasets.
 */
export async function examineRunFile(
  file: string,
  { imports = false, looked, ...options }: ExamineOptions,
  opening: Opening = (_, open) => open(),
): Promise<RunFileReport> {
  const nothing = { warnings: [], advice: [], obstacles: [], loaded: null, model: null };
  let loaded: LoadedConfig;
  try {
    loaded = looked ?? (await loadRunConfig(file, { ...options, isOnlyLookedAt: true }));
  } catch (error) {
    if (!(error instanceof ConfigProblems)) throw error;
    const { problems, readAs } = error;
    return { file, readAs, problems, ...nothing, environments: new Map(), notImported: [] };
  }
  const { spec } = loaded;
  const problems = [...loaded.problems];
  const obstacles: Obstacle[] = [];
  const model = await checkModel(spec).catch((error: unknown) => {
    if (error instanceof MemoryTooSmall) {
      const { expected, received } = error;
      problems.push({ ...loaded.placeOf(['inference', 'memory_gb']), expected, received });
      return null;
    }
    if (error instanceof ContextTooSmall) {
      for (const { at, ...what } of error.problems) {
        const place = loaded.placeOf(...at);
        // An environment that inherits the number has no line of its own.
        if (!problems.some(({ path }) => path === place.path)) problems.push({ ...place, ...what });
      }
      return null;
    }
    if (!(error instanceof RatchetError) || !ofModels.includes(error.code)) throw error;
    if (!spec.model.startsWith('preset:')) obstacles.push(modelObstacle(spec, error, loaded.placeOf(['model']).path));
    else problems.push({ ...loaded.placeOf(['model']), expected: 'a preset that there is', received: error.message });
    return null;
  });
  const notImported: NotImported[] = [];
  const opened = await openEnvironments(loaded, opening, { problems, obstacles, imports, notImported });
  if (loaded.problems.length === 0) obstacles.push(...variableObstacles(spec));
  const trained = spec.environments.flatMap((entry) => {
    const environment = opened.get(entry.name);
    return environment ? [{ entry, environment }] : [];
  });
  const lacking = loaded.problems.length === 0 ? whatIsLacking(spec, trained) : { problems: [], warnings: [] };
  problems.push(...lacking.problems.map(({ at, ...what }) => ({ ...loaded.placeOf(at), ...what })));
  const template = await findingsOfTemplate(loaded, { opened, isModelHere: model !== null });
  obstacles.push(...template.obstacles.map(templateObstacle));
  const ofEnvironments = [...opened.values()].flatMap((environment) => environment.warnings ?? []);
  const warnings = [...ofEnvironments, ...lacking.warnings];
  const turns = turnsOf(spec, opened);
  const slow = tooSlowHere(spec, model, turns);
  if (slow !== null)
    obstacles.push({
      about: 'machine',
      says: slow,
      remedies: [`to train all the same: npx ratchet-rl train ${file} --yes`],
    });
  const report = { file, readAs: loaded.readAs, advice: loaded.advice };
  return {
    ...report,
    warnings: [
      ...new Set([...loaded.warnings, ...warnings, ...template.warnings].concat(warningsBefore(spec, model, turns))),
    ],
    problems: problems.toSorted((a, b) => (a.line ?? 0) - (b.line ?? 0)),
    obstacles,
    loaded: problems.length === 0 ? loaded : null,
    model,
    environments: opened,
    notImported,
  };
}

/** An existing run has its own template, which is not read here; problems of the file are reported already. */
async function findingsOfTemplate(
  { spec, chatTemplate, problems }: LoadedConfig,
  { opened, isModelHere }: { readonly opened: ReadonlyMap<string, Environment>; readonly isModelHere: boolean },
): ReturnType<typeof checkTemplate> {
  const isUnread = spec.chatTemplate !== null && chatTemplate === null;
  if (!isModelHere || isUnread || problems.length > 0) return { obstacles: [], warnings: [] };
  return checkTemplate({ spec, ...(chatTemplate === null ? {} : { chatTemplate }) }, opened);
}

function templateObstacle(says: string): Obstacle {
  return { about: 'model', says, remedies: ['name a template that takes these messages: [tokenizer] chat_template'] };
}

const unchecked =
  'whether it loads with its arguments, its datasets, demonstrations and tools, and the template with them';

/** Opens environments of training and evaluation by name; reports each only once. */
async function openEnvironments(
  { spec, placeOf, missing }: LoadedConfig,
  opening: Opening,
  {
    problems,
    obstacles,
    imports,
    notImported,
  }: {
    readonly problems: Problem[];
    readonly obstacles: Obstacle[];
    readonly imports: boolean;
    readonly notImported: NotImported[];
  },
): Promise<Map<string, Environment>> {
  const entries = [
    ...spec.environments.map((entry, i) => ({ entry, at: [['env', i]] })),
    ...(spec.eval?.environments ?? []).map((entry, i) => ({ entry, at: [['eval', 'env', i], ['env', i]] })), // prettier-ignore
  ];
  const opened = new Map<string, Environment>();
  const said = new Set<string>();
  const notHere = new Map(missing.map((environment) => [environment.id, environment]));
  obstacles.push(...[...notHere.values()].map(environmentObstacle));
  for (const { entry, at } of entries) {
    const key = JSON.stringify([entry.id, entry.args]);
    const isRefusedFile = isEnvironmentFile(entry.id) ? entry.sha256 === undefined : hasRefusedFiles(entry);
    // Environments in child processes are left to `ratchet env check`; reading a file starts no process.
    const isElsewhere = environmentTraits(entry).process === 'child';
    if (said.has(key) || isRefusedFile || notHere.has(entry.id) || isElsewhere) continue;
    const runs = imports ? null : runsOfFile(entry);
    if (runs !== null) {
      said.add(key);
      notImported.push({ name: entry.name, runs, unchecked });
      continue;
    }
    const { variables: _, ...bare } = entry; // missing variables are reported on their own
    try {
      opened.set(entry.name, await opening(entry.id, () => openEnvironment(bare)));
    } catch (error) {
      said.add(key);
      if (!(error instanceof RatchetError)) throw error;
      if (error.code === 'EnvironmentUnknown')
        obstacles.push({ about: 'environment', says: error.message, remedies: [] });
      else {
        const place = placeOf(...at.map((names) => [...names, 'args']), ...at.map((names) => [...names, 'id']));
        problems.push({
          ...place,
          expected: 'an environment that loads with these arguments',
          received: error.message,
        });
      }
    }
  }
  return opened;
}

/** Whether a file of an agent was refused when the run file was read: it has no digest then, and is reported already. */
function hasRefusedFiles({ program }: Pick<RunSpec['environments'][number], 'program'>): boolean {
  if (program === undefined) return false;
  const { tasks, evalTasks, sandbox, score } = program;
  return [tasks, evalTasks, sandbox.files, score.files].some((file) => file?.sha256 === null);
}

/** Each missing variable once, however many environments list it. */
function variableObstacles(spec: RunSpec): Obstacle[] {
  const entries = [...spec.environments, ...(spec.eval?.environments ?? [])];
  const missing = new Set(entries.flatMap((entry) => missingVariables(variablesFor(entry))));
  const keys = missingAgentKeys(entries).map((name): Obstacle => {
    const says = `${name}, which api_key_var of [[env.models]] or [env.score.judge] names, is not set here`;
    return { about: 'environment', says, remedies: ['set it where the workers are started'] };
  });
  const listed = [...missing].map((name): Obstacle => ({
    about: 'environment',
    says: `${name}, which is listed in env_vars, is not set here`,
    remedies: [
      'set it where the workers are started: `ratchet train` hands on what its run file names, `ratchet dev` what RATCHET_PYTHON_VARIABLES names',
      'or write it into a file that is named at the top: env_files = ["secrets.env"]',
    ],
  }));
  return [...listed, ...keys];
}

/** Codes of what is wrong with a model: it cannot be opened, or its weights are not whole. */
const ofModels: readonly string[] = ['ModelUnsupported', 'CheckpointDamaged'];

/** `key`: where the file names its model. */
function modelObstacle(spec: RunSpec, error: RatchetError, key: string): Obstacle {
  if (!isFetched(spec.model) || error.code === 'CheckpointDamaged')
    return { about: 'model', says: error.message, remedies: [] };
  return { about: 'model', ...notHere(spec, key) };
}

function environmentObstacle({ received, suggestion }: MissingEnvironment): Obstacle {
  return { about: 'environment', says: received, remedies: suggestion === undefined ? [] : [suggestion] };
}
