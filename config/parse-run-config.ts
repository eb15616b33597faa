import { asRunName, runNamePattern } from '../core/names.ts';
import { detectDialect } from './dialects/detect.ts';
import { type Dialect, refusedFields, schemaOf, translate } from './dialects/dialect.ts';
import { dialectNamed, dialects } from './dialects/index.ts';
import { resumeStepOf } from './settings/checkpoints.ts';
import { RatchetConfig, toRunSpec } from './settings/index.ts';
import { ratchetRelations, ratchetWarnings } from './dialects/ratchet-relations.ts';
import { knownUnsupported, synonyms } from './dialects/ratchet-words.ts';
import { applyOverrides } from './overrides.ts';
import type { FindEnvironment } from './find-environment.ts';
import { inOwnWords, kindAt } from './own-words.ts';
import { type Layer, layeredPositions, mergedLayers } from './layers.ts';
import { keptLater, laterSettings } from './not-yet.ts';
import { parseToml } from './parse-toml.ts';
import { formatPath, type KeyPath } from './positions.ts';
import type { Place, Problem } from './problems.ts';
import { type Reading, readTable } from './read-table.ts';
import { reportSecrets } from './report-secrets.ts';
import { quoted, Reporter } from './reporter.ts';
import { type EnvironmentSpec, type JsonValue, RunSpec } from './run-spec.ts';
import { expectedAt } from './schema-reader.ts';
import { adviseSettings, type SettingAdvice } from './setting-advice.ts';
import { isTable, type Table, valueAt } from './tables.ts';

export { formatProblems } from './problems.ts';
export type { Problem } from './problems.ts';

export interface ParseOptions {
  /** As the user named it; appears in errors, and its stem is the run's name when nothing else names it. */
  readonly file: string;
  /** Dotted keys with values as typed: `{ 'sampling.temperature': '0.7', 'max-steps': '5' }`. In the words of the file's dialect. */
  readonly overrides?: Readonly<Record<string, string>>;
  /** The name given on the command line; wins over the file's. */
  readonly runName?: string;
  /** What ids stand for, if the caller knows: others are then refused here, with their line, and the spec has what was found. */
  readonly findEnvironment?: FindEnvironment;
  /** Environments that are not here are told (`missing`) and not refused: the file is only looked at. */
  readonly isOnlyLookedAt?: boolean;
  /** The dialect, or its name; missing = the one that the file's keys show. */
  readonly dialect?: string | Dialect;
  /** Laid over the file, from left to right. */
  readonly over?: readonly Layer[];
}

/** What a file was read as. */
export interface ReadAs {
  readonly dialect: string;
  readonly title: string;
  /** What showed it: `--dialect`, something that only this one has, or the keys. */
  readonly because: string;
  /** Others whose keys these are as well and in which the same file means something else, and what. */
  readonly alternatives: readonly {
    readonly dialect: string;
    readonly title: string;
    readonly differs: readonly string[];
  }[];
}

export interface MissingEnvironment extends Problem {
  readonly id: string;
  /** What `ratchet env install` takes; null where there is nothing to install. */
  readonly install: string | null;
}

/** A field that is read, checked and kept, and that no part of Ratchet honours yet. */
export interface NotYet extends Place {
  /** As it was written. */
  readonly value: JsonValue;
  /** What will honour it. */
  readonly feature: string;
}

export type Advice = Omit<SettingAdvice, 'paths'> & Place;

export interface RunConfig {
  readonly spec: RunSpec;
  readonly warnings: string[];
  /** The step to go on from, where the config asks for one: −1 = the latest. */
  readonly resumeStep: number | null;
  readonly notYet: readonly NotYet[];
  readonly advice: readonly Advice[];
  /** Where a field of ours was written. */
  readonly placeOf: (...names: KeyPath[]) => Place;
  /** Environments that are not here. */
  readonly missing: readonly MissingEnvironment[];
  /** The file in our own words. */
  readonly ours: Table;
}

export type ParsedRunConfig =
  | (RunConfig & { readonly ok: true; readonly readAs: ReadAs })
  | { readonly ok: false; readonly problems: Problem[]; readonly readAs: ReadAs | null };

/** Reads a run's TOML. Says everything that is wrong with it at once, each problem with its line and what to do. */
export function parseRunConfig(text: string, options: ParseOptions): ParsedRunConfig {
  const layers = [{ file: options.file, text }, ...(options.over ?? [])];
  const parsed = layers.map((layer) => ({ layer, ...parseToml(layer.text, layer.file) }));
  const problems = parsed.flatMap(({ problem }) => problem ?? []);
  if (problems.length > 0) return { ok: false, problems, readAs: null };
  const written = mergedLayers(parsed.flatMap(({ layer, table }) => (table ? { layer, table } : [])));
  const candidates = options.dialect === undefined ? detectDialect(written, dialects) : [dialectOf(options.dialect)];
  const [dialect, ...others] = candidates as [Dialect, ...Dialect[]];
  const read = readAs(dialect, written, layers, options);
  const because = options.dialect === undefined ? (dialect.proof?.(written) ?? 'its keys') : '--dialect';
  const known = { dialect: dialect.name, title: dialect.title, because };
  if (!read.ok) return { ...read, readAs: { ...known, alternatives: [] } };
  const alternatives = others.flatMap((other) => {
    const alternative = readAs(other, written, layers, options);
    if (!alternative.ok) return [];
    const differs = differences(read.spec, alternative.spec);
    return differs.length === 0 ? [] : [{ dialect: other.name, title: other.title, differs }];
  });
  return { ...read, readAs: { ...known, alternatives } };
}

function dialectOf(given: string | Dialect): Dialect {
  return typeof given === 'string' ? dialectNamed(given) : given;
}

type Read = (RunConfig & { ok: true }) | { ok: false; problems: Problem[] };

function readAs(dialect: Dialect, file: Table, layers: readonly Layer[], options: ParseOptions): Read {
  const schema = schemaOf(dialect);
  const isOwn = dialect.schema !== undefined;
  const overrides = inOwnWords(options.overrides ?? {}, { schema, own: RatchetConfig, isOwn });
  const wants = (kind: string) => (path: KeyPath) => kindAt(schema, RatchetConfig, path) === kind;
  const overridden = applyOverrides(file, overrides, wants('string'), wants('object'));
  const applied = { ...overridden, table: dialect.prepare?.(overridden.table) ?? overridden.table };
  const reporter = new Reporter(options.file, layeredPositions(layers), applied);
  for (const { path, key, value, reason } of applied.misplaced) {
    reporter.fromCommandLine(path, reason, `--${key.replace(/^-+/, '')} ${quoted(value)}`);
  }
  reportSecrets(applied.table, reporter);
  const table = readTable(applied.table, readingOf(dialect), reporter);
  const own = table && translate(dialect, table);
  for (const { paths, ...problem } of own?.problems ?? []) {
    // What is missing may only have been taken out of its table, because it was wrong.
    const isTakenOut = valueAt(table, paths[0]!) === undefined && reporter.hasWithin(paths[0]!.slice(0, -1));
    if (!isTakenOut) reporter.addRelation(paths, problem);
  }
  // From here on everything is in our own words, and reported where it was written.
  if (own) reporter.speakOf((path) => (dialect.schema ? path : (own.writtenAt(path) ?? path)));
  const ownTable = own && (dialect.schema ? table : readTable(own.table, ratchetReading, reporter));
  const config = ownTable && RatchetConfig.parse(ownTable);
  if (config !== undefined) {
    for (const { paths, ...problem } of ratchetRelations(config)) {
      if (!paths.some((path) => reporter.has(path))) reporter.addRelation(paths, problem);
    }
  }
  const environments = config && findEnvironments(config, options, reporter);
  const name = runName(options, config, reporter);
  if (reporter.problems.length > 0 || !config || !own || !environments) {
    return { ok: false, problems: reporter.inOrder() };
  }

  // A config that got this far and does not make a RunSpec is a bug of the dialect, so this may throw.
  const later = laterSettings(table, own);
  const spec = RunSpec.parse({
    ...toRunSpec(config, name),
    later: keptLater(later),
  });
  const placeOf = (...names: KeyPath[]): Place => reporter.placeOf(names);
  return {
    ok: true,
    spec: withFound(spec, environments.found),
    warnings: [...own.warnings, ...ratchetWarnings(config), ...environments.said],
    resumeStep: resumeStepOf(config),
    missing: environments.missing,
    ours: dialect.schema ? applied.table : own.table,
    notYet: later.flatMap(({ path, value, feature, written }) =>
      written.length > 0
        ? written.map((one) => ({ ...reporter.placeOfWritten(one.path), value: one.value, feature }))
        : [{ ...placeOf(path), value, feature }],
    ),
    advice: adviseSettings(spec).map(({ paths, ...said }) => ({ ...said, ...placeOf(...paths) })),
    placeOf,
  };
}

const ratchetReading: Reading = {
  schema: RatchetConfig,
  refused: knownUnsupported,
  synonyms,
  placeholder: (path: KeyPath) => {
    const key = path.at(-1);
    if (key === 'model' || key === 'id') return 'x';
    return key === 'env' && path.length === 1 ? [{ id: 'x' }] : undefined;
  },
};

function readingOf(dialect: Dialect): Reading {
  if (dialect.schema) return ratchetReading;
  return {
    ...ratchetReading,
    schema: schemaOf(dialect),
    refused: refusedFields(dialect),
    synonyms: { ...synonyms, ...dialect.synonyms },
    ...(dialect.hints === undefined ? {} : { hints: dialect.hints }),
  };
}

/** Where two readings of a file mean something else, as `sampling.temperature: 1 here, 0.7 there`. */
function differences(here: unknown, there: unknown, path: KeyPath = []): string[] {
  if (isTable(here) && isTable(there)) {
    const keys = new Set([...Object.keys(here), ...Object.keys(there)]);
    return [...keys].flatMap((key) => differences(here[key], there[key], [...path, key]));
  }
  const [one, other] = [here, there].map((value) => JSON.stringify(value));
  return one === other ? [] : [`${formatPath(path)}: ${one} here, ${other} there`];
}

/** A run name from a file name: `configs/rl/Reverse Text.toml` → `reverse-text`. */
export function runNameFromFile(file: string): string {
  const base = file.split(/[/\\]/).at(-1) ?? '';
  return asRunName(base.replace(/\.[^.]*$/, '')) ?? 'run';
}

function runName(options: ParseOptions, config: RatchetConfig | undefined, reporter: Reporter): string {
  const { runName: given, file } = options;
  if (given === undefined) return config?.name ?? runNameFromFile(file);
  if (!runNamePattern.test(given)) {
    const suggestion = `for example "${runNameFromFile(`${given}.toml`)}"`;
    reporter.fromCommandLine(['name'], expectedAt(RatchetConfig, ['name'])!, quoted(given), suggestion);
  }
  return given;
}

type ResolvedEnvironment = Pick<EnvironmentSpec, 'id' | 'python'>;

interface Environments {
  /** By what was written: what it stands for. */
  readonly found: ReadonlyMap<string, ResolvedEnvironment>;
  readonly said: readonly string[];
  readonly missing: readonly MissingEnvironment[];
}

/** Looks for every environment once; those that are not here are problems, unless the file is only looked at. */
function findEnvironments(
  config: RatchetConfig,
  { findEnvironment, isOnlyLookedAt = false }: ParseOptions,
  reporter: Reporter,
): Environments {
  const resolved = new Map<string, ResolvedEnvironment>();
  const said = new Set<string>();
  const missing: MissingEnvironment[] = [];
  const entries = [
    ...config.env.map(({ id }, i) => ({ id, path: ['env', i, 'id'] })),
    ...(config.eval?.env ?? []).map(({ id }, i) => ({ id, path: ['eval', 'env', i, 'id'] })),
  ];
  for (const { id, path } of findEnvironment ? entries : []) {
    if (reporter.has(path)) continue;
    const found = findEnvironment!(id, { builtin: config.builtin });
    if (found.ok) {
      resolved.set(id, { id: found.id, ...(found.python === undefined ? {} : { python: found.python }) });
      if (found.said !== undefined) said.add(found.said);
      continue;
    }
    const { expected, received, suggestion, install = null } = found;
    const problem = { path, expected, received, ...(suggestion === undefined ? {} : { suggestion }) };
    if (isOnlyLookedAt) missing.push({ ...reporter.placed(problem), id, install });
    else reporter.add(problem);
  }
  return { found: resolved, said: [...said], missing };
}

function withFound(spec: RunSpec, found: ReadonlyMap<string, ResolvedEnvironment>): RunSpec {
  const named = <Entry extends { readonly id: string }>(entry: Entry): Entry => ({ ...entry, ...found.get(entry.id) });
  return {
    ...spec,
    environments: spec.environments.map(named),
    eval: spec.eval && { ...spec.eval, environments: spec.eval.environments.map(named) },
  };
}
