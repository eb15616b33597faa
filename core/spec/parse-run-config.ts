import { parse, TomlError } from 'smol-toml';
import type { z } from 'zod';
import { environmentName, isEnvironmentFile, runNamePattern } from '../names.ts';
import { nearestName } from '../suggest.ts';
import { HostedConfig } from './dialects/hosted.ts';
import { hostedRelations, hostedWarnings } from './dialects/hosted-relations.ts';
import { hostedResumeStep, hostedToRunSpec } from './dialects/hosted-run-spec.ts';
import { knownUnsupported, synonyms, writeOutShorthands } from './dialects/hosted-words.ts';
import { applyOverrides } from './overrides.ts';
import type { AppliedOverrides, Table } from './overrides.ts';
import { findPositions, formatPath, pathKey } from './positions.ts';
import type { KeyPath, Positions } from './positions.ts';
import type { Problem } from './problems.ts';
import { RunSpec } from './run-spec.ts';
import { expectedAt, keysAt, schemaAt, tableName, tablesOf } from './schema-reader.ts';
import { findSecrets, looksSecret } from './secrets.ts';

export { formatProblems } from './problems.ts';
export type { Problem } from './problems.ts';

export interface ParseOptions {
  /** As the user named it; appears in errors, and its stem is the run's name when nothing else names it. */
  readonly file: string;
  /** Dotted keys with values as typed: `{ 'sampling.temperature': '0.7', 'max-steps': '5' }`. */
  readonly overrides?: Readonly<Record<string, string>>;
  /** The name given on the command line; wins over the file's. */
  readonly runName?: string;
  /** Ids that can be loaded, if the caller knows them: others are then refused here, with their line. */
  readonly knownEnvironments?: readonly string[];
}

export type ParsedRunConfig =
  | {
      readonly ok: true;
      readonly spec: RunSpec;
      readonly warnings: string[];
      /** The step to go on from, where the config asks for one: −1 = the latest. */
      readonly resumeStep: number | null;
    }
  | { readonly ok: false; readonly problems: Problem[] };

/** Reads a run's TOML. Says everything that is wrong with it at once, each problem with its line and what to do. */
export function parseRunConfig(text: string, options: ParseOptions): ParsedRunConfig {
  const { file, overrides = {} } = options;
  let written: Table;
  try {
    written = parse(text, { unsafeKeyBehaviour: 'throw' });
  } catch (error) {
    if (!(error instanceof TomlError)) throw error;
    return { ok: false, problems: [syntaxProblem(error, file)] };
  }

  const wantsText = (path: KeyPath) => schemaAt(HostedConfig, path)?.type === 'string';
  const overridden = applyOverrides(written, overrides, wantsText);
  const applied = { ...overridden, table: writeOutShorthands(overridden.table) };
  const reporter = new Reporter(file, findPositions(text), applied);
  for (const { path, key, value, reason } of applied.misplaced) {
    reporter.fromCommandLine(path, reason, `--${key.replace(/^-+/, '')} ${quoted(value)}`);
  }
  reportSecrets(applied.table, reporter);
  const foreign = foreignDialect(applied.table);
  if (foreign !== undefined) {
    reporter.add(foreign);
    return { ok: false, problems: reporter.inOrder() };
  }
  const config = readConfig(applied.table, reporter);
  if (config !== undefined) {
    for (const { paths, ...problem } of hostedRelations(config)) {
      if (!paths.some((path) => reporter.has(path))) reporter.addRelation(paths, problem);
    }
    reportUnknownEnvironments(config, options, reporter);
  }
  const name = runName(options, config, reporter);
  if (reporter.problems.length > 0 || config === undefined) return { ok: false, problems: reporter.inOrder() };

  // A config that got this far and does not make a RunSpec is a bug of the dialect, so this may throw.
  const spec = RunSpec.parse(hostedToRunSpec(config, name));
  return { ok: true, spec, warnings: hostedWarnings(config), resumeStep: hostedResumeStep(config) };
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

function runName(options: ParseOptions, config: HostedConfig | undefined, reporter: Reporter): string {
  const { runName: given, file } = options;
  if (given === undefined) return config?.name ?? runNameFromFile(file);
  if (!runNamePattern.test(given)) {
    const suggestion = `for example "${runNameFromFile(`${given}.toml`)}"`;
    reporter.fromCommandLine(['name'], expectedAt(HostedConfig, ['name'])!, quoted(given), suggestion);
  }
  return given;
}

/** Another trainer's config: said once, since every single key of it would be unknown. */
function foreignDialect(table: Table): (Said & { readonly path: KeyPath }) | undefined {
  const trainer = valueAt(table, ['trainer']);
  const said = {
    expected: 'a config in the words of Hosted Training: model, max_steps, batch_size, [sampling], [[env]]',
    suggestion: 'known, not supported yet: this dialect; configs/rl/reverse-text.toml shows the other',
  };
  if (isObject(valueAt(table, ['orchestrator']))) {
    return { path: ['orchestrator'], received: 'a prime-rl config, with an [orchestrator]', ...said };
  }
  if (isObject(trainer) && isObject(trainer['args'])) {
    return { path: ['trainer', 'args'], received: 'a vf-rl config, with [trainer.args]', ...said };
  }
  return undefined;
}

/** The config if its fields are right. If not, every problem is reported, and what can be repaired is, so that relations are still looked at. */
function readConfig(table: Table, reporter: Reporter): HostedConfig | undefined {
  const parsed = HostedConfig.safeParse(table);
  if (parsed.success) return parsed.data;
  for (const issue of parsed.error.issues) reportIssue(issue, table, reporter);
  return repair(table, parsed.error.issues);
}

/** Taking out one wrong thing may leave its table without something it needs; tables are at most this deep. */
const repairRounds = 4;

/** The config without what is wrong in it, and with placeholders for what must be there. */
function repair(table: Table, issues: readonly z.core.$ZodIssue[]): HostedConfig | undefined {
  const copy = structuredClone(table);
  let wrong = issues;
  for (let round = 0; round < repairRounds; round++) {
    for (const issue of wrong) takeOut(copy, issue);
    const parsed = HostedConfig.safeParse(copy);
    if (parsed.success) return parsed.data;
    wrong = parsed.error.issues;
  }
  return undefined;
}

function takeOut(table: Table, issue: z.core.$ZodIssue): void {
  const within = valueAt(table, issue.path);
  if (issue.code === 'unrecognized_keys') {
    if (isObject(within)) for (const unknown of issue.keys) delete within[unknown];
    return;
  }
  const parent = valueAt(table, issue.path.slice(0, -1));
  const key = issue.path.at(-1);
  if (!isObject(parent) || typeof key !== 'string') return;
  const isMissing = within === undefined;
  delete parent[key];
  if (key === 'model' || key === 'id') parent[key] = 'x';
  else if (key === 'env' && issue.path.length === 1) parent[key] = [{ id: 'x' }];
  else if (isMissing && issue.path.length > 1) takeOut(table, { ...issue, path: issue.path.slice(0, -1) });
}

function reportIssue(issue: z.core.$ZodIssue, table: Table, reporter: Reporter): void {
  const path = issue.path as KeyPath;
  if (issue.code === 'unrecognized_keys') {
    for (const key of issue.keys) reportUnknownKey([...path, key], reporter);
    return;
  }
  const received = valueAt(table, path);
  // A field inside free-form args has no schema of its own; the nearest one that has says what is expected.
  const described = path.map((_, i) => path.slice(0, path.length - i)).find((at) => expectedAt(HostedConfig, at));
  const expected = (described && expectedAt(HostedConfig, described)) ?? issue.message;
  const suggestion = valueSuggestion(path, received);
  reporter.add({ path, expected, received: describe(received), ...(suggestion === undefined ? {} : { suggestion }) });
}

function valueSuggestion(path: KeyPath, received: unknown): string | undefined {
  const expectsList = schemaAt(HostedConfig, path)?.type === 'array';
  if (expectsList && isObject(received)) return `write [[${tableName(path)}]] with two brackets: there may be several`;
  if (path.length === 1 && path[0] === 'max_async_level' && typeof received === 'number' && received > 1) {
    return 'more than one step ahead is not supported yet; use 1';
  }
  const asNumber = typeof received === 'string' && received.trim() !== '' && Number.isFinite(Number(received));
  if (asNumber && /number|int/.test(schemaAt(HostedConfig, path)?.type ?? ''))
    return `write ${received.trim()} without quotes`;
  if (received === 'true' || received === 'false') return `write ${received} without quotes`;
  return undefined;
}

function reportUnknownKey(path: KeyPath, reporter: Reporter): void {
  const key = String(path.at(-1));
  if (looksSecret(key)) return; // Said already, without repeating it.
  const field = tableName(path);
  const unsupported = Object.hasOwn(knownUnsupported, field) ? knownUnsupported[field] : undefined;
  if (unsupported !== undefined) {
    reporter.add({
      path,
      expected: 'nothing here',
      received: 'a field Ratchet cannot honour',
      suggestion: `known, not supported yet: ${unsupported}`,
    });
    return;
  }
  const table = path.slice(0, -1);
  const keys = keysAt(HostedConfig, table);
  const within = table.length === 0 ? 'a key of the top level' : `a key of [${tableName(table)}]`;
  const suggestion = keySuggestion(key, table, keys);
  reporter.add({
    path,
    expected: suggestion === undefined ? `${within}: ${keys.join(', ')}` : within,
    received: 'an unknown key',
    ...(suggestion === undefined ? {} : { suggestion }),
  });
}

function keySuggestion(key: string, table: KeyPath, keys: readonly string[]): string | undefined {
  const here = tableName(table);
  const canonical = key.toLowerCase().replaceAll('-', '_');
  if (keys.includes(canonical)) return `did you mean "${canonical}"?`;
  const elsewhere = (wanted: string) =>
    [...tablesOf(HostedConfig)]
      .filter(([name, keys]) => name !== here && keys.includes(wanted))
      .map(([name]) => placeOf(name));

  const places = elsewhere(canonical);
  if (places.length > 0) return `"${canonical}" belongs ${places.join(' or ')}`;
  const synonym = Object.hasOwn(synonyms, canonical) ? synonyms[canonical]! : undefined;
  if (synonym !== undefined) {
    return keys.includes(synonym)
      ? `here it is called "${synonym}"`
      : `it is called "${synonym}" and belongs ${elsewhere(synonym).join(' or ')}`;
  }
  const near = nearestName(key, keys);
  if (near !== undefined) return `did you mean "${near}"?`;
  const far = nearestName(key, [...tablesOf(HostedConfig).values()].flat());
  return far === undefined ? undefined : `did you mean "${far}"? It belongs ${elsewhere(far).join(' or ')}`;
}

function placeOf(table: string): string {
  if (table === '') return 'at the top, before the first table';
  return schemaAt(HostedConfig, table.split('.'))?.type === 'array' ? `in [[${table}]]` : `in [${table}]`;
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
  config: HostedConfig,
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

type Said = Pick<Problem, 'expected' | 'received' | 'suggestion'>;

/** Collects problems and knows where each value was written. One problem per path: the first to be said wins. */
class Reporter {
  readonly problems: Problem[] = [];
  readonly #file: string;
  readonly #positions: Positions;
  readonly #applied: AppliedOverrides;
  readonly #paths = new Set<string>();

  constructor(file: string, positions: Positions, applied: AppliedOverrides) {
    this.#file = file;
    this.#positions = positions;
    this.#applied = applied;
  }

  add({ path, ...said }: Said & { readonly path: KeyPath }): void {
    this.#add(path, said, path);
  }

  #add(path: KeyPath, said: Said, written: KeyPath): void {
    if (this.#applied.isOverridden(written)) {
      this.fromCommandLine(path, said.expected, said.received, said.suggestion);
      return;
    }
    const position = this.#nearestPosition(written);
    this.#push(path, {
      file: this.#file,
      line: position?.line ?? null,
      column: position?.column ?? null,
      path: formatPath(path),
      ...said,
    });
  }

  /** A problem of several fields: named after the first, found where one of them was written. */
  addRelation(paths: readonly KeyPath[], said: Said): void {
    const written = paths.find((path) => this.#applied.isOverridden(path) || this.#positions.at(path) !== undefined);
    this.#add(paths[0]!, said, written ?? paths[0]!);
  }

  fromCommandLine(path: KeyPath, expected: string, received: string, suggestion?: string): void {
    const where = { file: 'command line', line: null, column: null, path: formatPath(path) };
    this.#push(path, { ...where, expected, received, ...(suggestion === undefined ? {} : { suggestion }) });
  }

  /** Whether something was said about a value or a table it lies in. */
  has(path: KeyPath): boolean {
    return path.some((_, i) => this.#paths.has(pathKey(path.slice(0, i + 1))));
  }

  /** As one reads the file, from top to bottom; what has no line comes first. */
  inOrder(): Problem[] {
    return this.problems.toSorted((a, b) => (a.line ?? 0) - (b.line ?? 0) || (a.column ?? 0) - (b.column ?? 0));
  }

  #push(path: KeyPath, problem: Problem): void {
    if (this.#paths.has(pathKey(path))) return;
    this.#paths.add(pathKey(path));
    this.problems.push(problem);
  }

  /** A value that is missing is missing from a table that has a line. */
  #nearestPosition(path: KeyPath) {
    for (let length = path.length; length > 0; length--) {
      const position = this.#positions.at(path.slice(0, length));
      if (position !== undefined) return position;
    }
    return undefined;
  }
}

function describe(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (typeof value === 'string') return quoted(value);
  if (value instanceof Date) return 'a date';
  if (Array.isArray(value)) return `a list of ${value.length}`;
  if (isObject(value)) return 'a table';
  return typeof value === 'number' || typeof value === 'boolean' ? String(value) : 'something else';
}

/** A text in quotes, cut where it gets long, and never a secret. */
function quoted(text: string): string {
  if (looksSecret(text)) return 'a text that looks like a secret (not repeated here)';
  return JSON.stringify(text.length > 80 ? `${text.slice(0, 77)}...` : text);
}

function valueAt(root: unknown, path: readonly PropertyKey[]): unknown {
  let here = root;
  for (const key of path) {
    if (typeof here !== 'object' || here === null || !Object.hasOwn(here, key)) return undefined;
    here = (here as Record<PropertyKey, unknown>)[key];
  }
  return here;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Date);
}
