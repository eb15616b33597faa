import { parse, TomlError } from 'smol-toml';
import { asRunName, environmentName, isEnvironmentFile, runNamePattern } from '../names.ts';
import { nearestName } from '../suggest.ts';
import { detectDialect } from './dialects/detect.ts';
import { type Dialect, refusedFields, schemaOf, translate } from './dialects/dialect.ts';
import { placesOf } from './dialects/places.ts';
import { dialectNamed, dialects } from './dialects/index.ts';
import { laterFields } from './dialects/later.ts';
import { RatchetConfig } from './dialects/ratchet.ts';
import { ratchetRelations, ratchetWarnings } from './dialects/ratchet-relations.ts';
import { ratchetResumeStep, ratchetToRunSpec } from './dialects/ratchet-run-spec.ts';
import { knownUnsupported, synonyms } from './dialects/ratchet-words.ts';
import { applyOverrides } from './overrides.ts';
import { inOwnWords, kindAt } from './own-words.ts';
import { type Layer, layeredPositions, mergedLayers } from './layers.ts';
import { formatPath, type KeyPath } from './positions.ts';
import type { Problem } from './problems.ts';
import { type Reading, readTable } from './read-table.ts';
import { quoted, Reporter } from './reporter.ts';
import { type JsonValue, RunSpec } from './run-spec.ts';
import { expectedAt } from './schema-reader.ts';
import { findSecrets } from './secrets.ts';
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
  /** Ids that can be loaded, if the caller knows them: others are then refused here, with their line. */
  readonly knownEnvironments?: readonly string[];
  /** The name of the dialect; missing = the one that the file's keys show. */
  readonly dialect?: string;
  /** Laid over the file, from left to right. */
  readonly over?: readonly Layer[];
}

/** What a file was read as. */
export interface ReadAs {
  readonly dialect: string;
  readonly title: string;
  /** Others whose keys these are as well and in which the same file means something else, and what. */
  readonly alternatives: readonly {
    readonly dialect: string;
    readonly title: string;
    readonly differs: readonly string[];
  }[];
}

export type ParsedRunConfig =
  | {
      readonly ok: true;
      readonly spec: RunSpec;
      readonly warnings: string[];
      /** The step to go on from, where the config asks for one: −1 = the latest. */
      readonly resumeStep: number | null;
      readonly readAs: ReadAs;
    }
  | { readonly ok: false; readonly problems: Problem[]; readonly readAs: ReadAs | null };

/** Reads a run's TOML. Says everything that is wrong with it at once, each problem with its line and what to do. */
export function parseRunConfig(text: string, options: ParseOptions): ParsedRunConfig {
  const layers = [{ file: options.file, text }, ...(options.over ?? [])];
  const tables: { layer: Layer; table: Table }[] = [];
  const problems: Problem[] = [];
  for (const layer of layers) {
    try {
      tables.push({ layer, table: parse(layer.text, { unsafeKeyBehaviour: 'throw' }) });
    } catch (error) {
      if (!(error instanceof TomlError)) throw error;
      problems.push(syntaxProblem(error, layer.file));
    }
  }
  if (problems.length > 0) return { ok: false, problems, readAs: null };
  const written = mergedLayers(tables);
  const candidates = options.dialect === undefined ? detectDialect(written, dialects) : [dialectNamed(options.dialect)];
  const [dialect, ...others] = candidates as [Dialect, ...Dialect[]];
  const read = readAs(dialect, written, layers, options);
  if (!read.ok) return { ...read, readAs: { dialect: dialect.name, title: dialect.title, alternatives: [] } };
  const alternatives = others.flatMap((other) => {
    const alternative = readAs(other, written, layers, options);
    if (!alternative.ok) return [];
    const differs = differences(read.spec, alternative.spec);
    return differs.length === 0 ? [] : [{ dialect: other.name, title: other.title, differs }];
  });
  return { ...read, readAs: { dialect: dialect.name, title: dialect.title, alternatives } };
}

type Read =
  { ok: true; spec: RunSpec; warnings: string[]; resumeStep: number | null } | { ok: false; problems: Problem[] };

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
    reportUnknownEnvironments(config, options, reporter);
  }
  const name = runName(options, config, reporter);
  if (reporter.problems.length > 0 || config === undefined || own === undefined) {
    return { ok: false, problems: reporter.inOrder() };
  }

  // A config that got this far and does not make a RunSpec is a bug of the dialect, so this may throw.
  const spec = RunSpec.parse({ ...ratchetToRunSpec(config, name), later: laterOf(own.table) });
  return {
    ok: true,
    spec,
    warnings: [...own.warnings, ...ratchetWarnings(config)],
    resumeStep: ratchetResumeStep(config),
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

function reportSecrets(table: Table, reporter: Reporter): void {
  for (const path of findSecrets(table)) {
    reporter.add({
      path,
      expected: 'no secrets: this file is copied into the store and shown in reports',
      received: 'what looks like a literal secret (not repeated here)',
      suggestion:
        'rotate it, since it has been in a file; put the new one in an environment variable and name that instead',
    });
  }
}

function reportUnknownEnvironments(
  config: RatchetConfig,
  { knownEnvironments: known }: ParseOptions,
  reporter: Reporter,
): void {
  if (known === undefined) return;
  const entries = [
    ...config.env.map(({ id }, i) => ({ id, path: ['env', i, 'id'] })),
    ...(config.eval?.env ?? []).map(({ id }, i) => ({ id, path: ['eval', 'env', i, 'id'] })),
  ];
  for (const { id, path } of entries) {
    if (isEnvironmentFile(id) || known.includes(environmentName(id)) || reporter.has(path)) continue;
    const near = nearestName(environmentName(id), known);
    const suggestion = near === undefined ? undefined : `did you mean "${near}"?`;
    const expected = `an environment that is installed: ${known.join(', ')}`;
    reporter.add({ path, expected, received: quoted(id), ...(suggestion === undefined ? {} : { suggestion }) });
  }
}

function syntaxProblem(error: TomlError, file: string): Problem {
  const [reason = 'a syntax error'] = error.message.replace(/^Invalid TOML document: /, '').split('\n');
  return { file, line: error.line, column: error.column, path: '', expected: 'valid TOML', received: reason };
}
