import { detectDialect } from './dialects/detect.ts';
import type { Dialect } from './dialects/dialect.ts';
import { dialectNamed, dialects } from './dialects/index.ts';
import { dialectsIn } from './dialects/prime-rl-files.ts';
import type { FindEnvironment } from './find-environment.ts';
import { type Layer, mergedLayers } from './layers.ts';
import { parseToml, type TomlFile } from './parse-toml.ts';
import { formatPath, type KeyPath } from './positions.ts';
import { partOfPrimeRl } from './part-of-prime-rl.ts';
import type { Place, Problem } from './problems.ts';
import { readInDialect } from './read-in-dialect.ts';
import type { JsonValue, RunSpec } from './run-spec.ts';
import type { SettingAdvice } from './setting-advice.ts';
import { differencesOf, type Table } from './tables.ts';

export { formatProblems } from './problems.ts';
export type { Problem } from './problems.ts';
export { runNameFromFile } from './run-name.ts';

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
  /** What is done in its place; null = nothing is to be said of that. */
  readonly here: string | null;
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

/** Reads a run's TOML, or what was parsed of it before. Says everything that is wrong with it at once, each problem with its line and what to do. */
export function parseRunConfig(source: string | TomlFile, options: ParseOptions): ParsedRunConfig {
  const first = typeof source === 'string' ? parseToml(source, options.file) : source;
  const layers: readonly Layer[] = [first, ...(options.over ?? [])];
  const parsed = [first, ...layers.slice(1).map(({ text, file, toml }) => toml ?? parseToml(text, file))];
  const problems = parsed.flatMap(({ problem }) => problem ?? []);
  if (problems.length > 0) return { ok: false, problems, readAs: null };
  const written = mergedLayers(parsed.flatMap(({ table }, i) => (table ? { layer: layers[i]!, table } : [])));
  const possible = dialectsIn(options.file, written, dialects);
  const part = options.dialect === undefined ? partOfPrimeRl(written) : undefined;
  if (part) return { ok: false, problems: [{ ...part, file: first.file, line: 1, column: 1 }], readAs: null };
  const candidates = options.dialect === undefined ? detectDialect(written, possible) : [dialectOf(options.dialect)];
  const [dialect, ...others] = candidates as [Dialect, ...Dialect[]];
  const read = readInDialect(dialect, written, layers, options);
  const byKeys = possible === dialects ? 'its keys' : 'its keys, and the folder prime-rl that it is in';
  const because = options.dialect === undefined ? (dialect.proof?.(written) ?? byKeys) : '--dialect';
  const known = { dialect: dialect.name, title: dialect.title, because };
  if (!read.ok) return { ...read, readAs: { ...known, alternatives: [] } };
  const alternatives = others.flatMap((other) => {
    const alternative = readInDialect(other, written, layers, options);
    if (!alternative.ok) return [];
    const differs = differences(read.spec, alternative.spec);
    return differs.length === 0 ? [] : [{ dialect: other.name, title: other.title, differs }];
  });
  return { ...read, readAs: { ...known, alternatives } };
}

function dialectOf(given: string | Dialect): Dialect {
  return typeof given === 'string' ? dialectNamed(given) : given;
}

/** Where two readings of a file mean something else, as `sampling.temperature: 1 here, 0.7 there`. */
function differences(spec: RunSpec, other: RunSpec): string[] {
  return [...differencesOf(spec, other)].map(({ path, here, there }) => {
    const [one, another] = [here, there].map((value) => JSON.stringify(value));
    return `${formatPath(path)}: ${one} here, ${another} there`;
  });
}
