import { runNamePattern } from '../names.ts';
import { detectDialect } from './dialects/detect.ts';
import { type Dialect, placesOf, refusedFields, schemaOf, translate } from './dialects/dialect.ts';
import { dialectNamed, dialects } from './dialects/index.ts';
import { laterFields } from './dialects/later.ts';
import { RatchetConfig } from './dialects/ratchet.ts';
import { ratchetRelations, ratchetWarnings } from './dialects/ratchet-relations.ts';
import { ratchetResumeStep, ratchetToRunSpec } from './dialects/ratchet-run-spec.ts';
import { knownUnsupported, synonyms } from './dialects/ratchet-words.ts';
import { applyOverrides } from './overrides.ts';
import type { FindEnvironment } from './find-environment.ts';
import { parseToml } from './parse-toml.ts';
import { findPositions, formatPath, type KeyPath } from './positions.ts';
import type { Problem } from './problems.ts';
import { type Reading, readTable } from './read-table.ts';
import { reportSecrets } from './report-secrets.ts';
import { quoted, Reporter } from './reporter.ts';
import { type JsonValue, RunSpec } from './run-spec.ts';
import { expectedAt, schemaAt } from './schema-reader.ts';
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
}

/** What a file was read as. */
export interface ReadAs {
  readonly dialect: string;
  readonly title: string;
  /** Others whose keys these could be as well, by title, and where the same file means something else in them. */
  readonly alternatives: readonly {
    readonly dialect: string;
    readonly title: string;
    readonly differs: readonly string[];
  }[];
}

export interface MissingEnvironment extends Problem {
  /** What `ratchet env install` takes; null where the Environments Hub is not where it comes from. */
  readonly hub: string | null;
}

export type ParsedRunConfig =
  | {
      readonly ok: true;
      readonly spec: RunSpec;
      readonly warnings: string[];
      /** The step to go on from, where the config asks for one: −1 = the latest. */
      readonly resumeStep: number | null;
      readonly readAs: ReadAs;
      /** Environments that are not here. */
      readonly missing: readonly MissingEnvironment[];
      /** The file in our own words. */
      readonly ours: Table;
    }
  | { readonly ok: false; readonly problems: Problem[]; readonly readAs: ReadAs | null };

/** Reads a run's TOML. Says everything that is wrong with it at once, each problem with its line and what to do. */
export function parseRunConfig(text: string, options: ParseOptions): ParsedRunConfig {
  const { file } = options;
  const { table: written, problem } = parseToml(text, file);
  if (problem) return { ok: false, problems: [problem], readAs: null };
  const candidates = options.dialect === undefined ? detectDialect(written, dialects) : [dialectOf(options.dialect)];
  const [dialect, ...others] = candidates as [Dialect, ...Dialect[]];
  const read = readAs(dialect, written, text, options);
  if (!read.ok) return { ...read, readAs: { dialect: dialect.name, title: dialect.title, alternatives: [] } };
  const alternatives = others.flatMap((other) => {
    const alternative = readAs(other, written, text, options);
    if (!alternative.ok) return [];
    return [{ dialect: other.name, title: other.title, differs: differences(read.spec, alternative.spec) }];
  });
  return { ...read, readAs: { dialect: dialect.name, title: dialect.title, alternatives } };
}

function dialectOf(given: string | Dialect): Dialect {
  return typeof given === 'string' ? dialectNamed(given) : given;
}

type Read =
  | {
      ok: true;
      spec: RunSpec;
      warnings: string[];
      resumeStep: number | null;
      missing: readonly MissingEnvironment[];
      ours: Table;
    }
  | { ok: false; problems: Problem[] };

function readAs(dialect: Dialect, file: Table, text: string, options: ParseOptions): Read {
  const schema = schemaOf(dialect);
  const wantsText = (path: KeyPath) => schemaAt(schema, path)?.type === 'string';
  const overridden = applyOverrides(file, options.overrides ?? {}, wantsText);
  const applied = { ...overridden, table: dialect.prepare?.(overridden.table) ?? overridden.table };
  const reporter = new Reporter(options.file, findPositions(text), applied);
  for (const { path, key, value, reason } of applied.misplaced) {
    reporter.fromCommandLine(path, reason, `--${key.replace(/^-+/, '')} ${quoted(value)}`);
  }
  reportSecrets(applied.table, reporter);
  const table = readTable(applied.table, readingOf(dialect), reporter);
  const own = table && translate(dialect, table);
  for (const { paths, ...problem } of own?.problems ?? []) reporter.addRelation(paths, problem);
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
  const spec = RunSpec.parse({ ...ratchetToRunSpec(config, name), later: laterOf(own.table) });
  return {
    ok: true,
    spec: withIds(spec, environments.ids),
    warnings: [...own.warnings, ...ratchetWarnings(config), ...environments.said],
    resumeStep: ratchetResumeStep(config),
    missing: environments.missing,
    ours: dialect.schema ? applied.table : own.table,
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
  };
}

/** What the config asks for and is still to come, by path. */
function laterOf(table: Table): RunSpec['later'] {
  return Object.fromEntries(
    Object.keys(laterFields).flatMap((field) =>
      placesOf(field, table).map((at) => [formatPath(at), valueAt(table, at) as JsonValue]),
    ),
  );
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
  const stem = base
    .replace(/\.[^.]*$/, '')
    .toLowerCase()
    .replaceAll(/[^a-z0-9._-]+/g, '-')
    .replace(/^[^a-z0-9]+/, '')
    .slice(0, 64)
    .replace(/[^a-z0-9]+$/, '');
  return runNamePattern.test(stem) ? stem : 'run';
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

interface Environments {
  /** By what was written: what it stands for. */
  readonly ids: ReadonlyMap<string, string>;
  readonly said: readonly string[];
  readonly missing: readonly MissingEnvironment[];
}

/** Looks for every environment once; those that are not here are problems, unless the file is only looked at. */
function findEnvironments(
  config: RatchetConfig,
  { findEnvironment, isOnlyLookedAt = false }: ParseOptions,
  reporter: Reporter,
): Environments {
  const ids = new Map<string, string>();
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
      ids.set(id, found.id);
      if (found.said !== undefined) said.add(found.said);
      continue;
    }
    const { expected, received, suggestion, hub = null } = found;
    const problem = { path, expected, received, ...(suggestion === undefined ? {} : { suggestion }) };
    if (isOnlyLookedAt) missing.push({ ...reporter.placed(problem), hub });
    else reporter.add(problem);
  }
  return { ids, said: [...said], missing };
}

function withIds(spec: RunSpec, ids: ReadonlyMap<string, string>): RunSpec {
  const named = <Entry extends { readonly id: string }>(entry: Entry): Entry => ({
    ...entry,
    id: ids.get(entry.id) ?? entry.id,
  });
  return {
    ...spec,
    environments: spec.environments.map(named),
    eval: spec.eval && { ...spec.eval, environments: spec.eval.environments.map(named) },
  };
}
