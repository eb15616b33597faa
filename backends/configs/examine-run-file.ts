import { RatchetError } from '../../core/errors.ts';
import { isEnvironmentFile, isHubId } from '../../core/names.ts';
import type { Advice, MissingEnvironment, NotYet, ReadAs } from '../../config/parse-run-config.ts';
import { ConfigProblems, type Problem } from '../../config/problems.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { slowStepRefusal, slowStepWarning, type TurnsOf } from '../../config/step-cost.ts';
import { MemoryTooSmall } from '../../engine/sample/server-memory.ts';
import { openEnvironment } from '../environments/index.ts';
import { whatIsLacking } from '../environments/what-is-lacking.ts';
import { missingVariables, variablesFor } from '../environments/variables.ts';
import type { Environment } from '../environments/types.ts';
import { whyNotTracked } from '../metrics/tracking-server.ts';
import { countsOfMissing, notHere } from './model-of-hub.ts';
import { turnsOf } from './turns-of.ts';
import { checkModel, contextWarning, type ModelSize } from './check-model.ts';
import { checkTemplate } from './check-template.ts';
import { type LoadedConfig, loadRunConfig, type LoadOptions } from './load-run-config.ts';
import { aboutPackaged } from '../hub/packaged-models.ts';

/** What keeps a run from being trained here, though its file is right. */
export interface Obstacle {
  readonly about: 'model' | 'environment' | 'machine';
  readonly says: string;
  /** What to do, in the order in which it is done. */
  readonly remedies: readonly string[];
}

/** All that can be said of a run file without starting anything. */
export interface RunFileReport {
  readonly file: string;
  /** null where that could not be told. */
  readonly readAs: ReadAs | null;
  /** Everything that is wrong with it, in the order of the file. */
  readonly problems: readonly Problem[];
  readonly warnings: readonly string[];
  readonly notYet: readonly NotYet[];
  readonly advice: readonly Advice[];
  readonly obstacles: readonly Obstacle[];
  /** null where there are problems. */
  readonly loaded: LoadedConfig | null;
  /** null where the model is not here. */
  readonly model: ModelSize | null;
  /** By name; only those that are here and were opened. */
  readonly environments: ReadonlyMap<string, Environment>;
  /** What runs code that the file names, and was left alone. */
  readonly notImported: readonly NotImported[];
}

/** Of an environment that was not loaded: its name, what of the file it would run, and what could therefore not be looked at. */
interface NotImported {
  readonly name: string;
  readonly runs: string;
  readonly unchecked: string;
}

interface ExamineOptions extends LoadOptions {
  /** Whether to import what the file names: it may be a stranger's. */
  readonly imports?: boolean;
}

/** What is said wherever the run is to be trained from here: how long a step may take, and that its metrics would go nowhere. */
export function warningsBefore(spec: RunSpec, model: ModelSize | null, turns: TurnsOf): string[] {
  const counts = model ?? countsOfMissing(spec);
  // One that is refused is told there.
  const isTold = tooSlowHere(spec, model, turns) !== null;
  const slow = isTold ? null : counts && slowStepWarning(spec, counts, turns);
  const context = model && contextWarning(spec, model);
  return [slow, context, whyNotTracked(spec)].filter((warning) => warning !== null);
}

/** A step that takes hours here is in the way unless it is meant; null where it does not, or where others compute. */
export function tooSlowHere(spec: RunSpec, model: ModelSize | null, turns: TurnsOf): string | null {
  const counts = model ?? countsOfMissing(spec);
  if (counts === null || (process.env['TEMPORAL_ADDRESS'] ?? '') !== '') return null;
  return slowStepRefusal(spec, counts, turns);
}

/** What of the file an environment would run once it is opened; null for those that come with Ratchet. */
export function runsOfFile({
  id,
  args,
  python,
}: Pick<RunSpec['environments'][number], 'id' | 'args' | 'python'>): string | null {
  if (python !== undefined) return `the Python package ${id} in ${python.folder}`;
  if (isEnvironmentFile(id)) return id;
  // Those that let a model write Python start the interpreter that they are given.
  return args['python'] === undefined ? null : `the interpreter ${JSON.stringify(args['python'])}`;
}

/** Goes around what may take long: the opening of an environment, by its id. */
type Opening = <T>(id: string, open: () => Promise<T>) => Promise<T>;

/**
 * Reads a run file and looks at what it names. Nothing is fetched, and without `imports` no code is run that the file names: whoever looks
 * at it may want to know first what it is. Datasets are not made.
 */
export async function examineRunFile(
  file: string,
  { imports = false, ...options }: ExamineOptions,
  opening: Opening = (_, open) => open(),
): Promise<RunFileReport> {
  const nothing = { warnings: [], notYet: [], advice: [], obstacles: [], loaded: null, model: null };
  let loaded: LoadedConfig;
  try {
    loaded = await loadRunConfig(file, { ...options, isOnlyLookedAt: true });
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
    if (!(error instanceof RatchetError) || error.code !== 'ModelUnsupported') throw error;
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
  const report = { file, readAs: loaded.readAs, notYet: loaded.notYet, advice: loaded.advice };
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

/** A run that goes on has a template that is not read here; what is wrong with the file is told already. */
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

/** Environments of training and evaluation by name; what is said of one that appears twice is said once. */
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
    const isRefusedFile = isEnvironmentFile(entry.id) && entry.sha256 === undefined;
    // A Python package is looked at (`ratchet env check`), and not imported by who reads a file.
    if (said.has(key) || isRefusedFile || notHere.has(entry.id) || entry.python !== undefined) continue;
    const runs = imports ? null : runsOfFile(entry);
    if (runs !== null) {
      said.add(key);
      notImported.push({ name: entry.name, runs, unchecked });
      continue;
    }
    const { variables: _, ...bare } = entry; // what is missing here is told by itself
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

/** Each missing variable once, whoever lists it. */
function variableObstacles(spec: RunSpec): Obstacle[] {
  const entries = [...spec.environments, ...(spec.eval?.environments ?? [])];
  const missing = new Set(entries.flatMap((entry) => missingVariables(variablesFor(entry))));
  return [...missing].map((name) => ({
    about: 'environment',
    says: `${name}, which is listed in env_vars, is not set here`,
    remedies: [
      'set it where the workers are started: `ratchet train` hands on what its run file names, `ratchet dev` what RATCHET_PYTHON_VARIABLES names',
      'or write it into a file that is named at the top: env_files = ["secrets.env"]',
    ],
  }));
}

/** `key`: where the file names its model. */
function modelObstacle(spec: RunSpec, error: RatchetError, key: string): Obstacle {
  if (!isHubId(spec.model) && aboutPackaged(spec.model) === null)
    return { about: 'model', says: error.message, remedies: [] };
  return { about: 'model', ...notHere(spec, key) };
}

function environmentObstacle({ received, suggestion }: MissingEnvironment): Obstacle {
  return { about: 'environment', says: received, remedies: suggestion === undefined ? [] : [suggestion] };
}
