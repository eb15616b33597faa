import type { Dialect } from './dialects/dialect.ts';
import type { FindEnvironment } from './find-environment.ts';
import type { RunSpec } from './run-spec.ts';
import type { SettingAdvice } from './setting-advice.ts';
import type { Layer } from './toml/layers.ts';
import type { KeyPath } from './toml/positions.ts';
import type { Place, Problem, ReadAs } from './toml/problems.ts';
import type { Table } from './toml/tables.ts';

/** Options for reading a run file, and the result. */

export interface ParseOptions {
  /** The file's name as the user typed it; appears in errors, and its stem is the run's name when nothing else names it. */
  readonly file: string;
  /** Dotted keys with values as typed: `{ 'sampling.temperature': '0.7', 'max-steps': '5' }`. In the words of the file's dialect. */
  readonly overrides?: Readonly<Record<string, string>>;
  /** The name given on the command line; wins over the file's. */
  readonly runName?: string;
  /** Resolves ids, if the caller can: others are then refused here, with their line, and the spec has what was found. */
  readonly findEnvironment?: FindEnvironment;
  /** Environments that are not here are told (`missing`) and not refused: the file is only looked at. */
  readonly isOnlyLookedAt?: boolean;
  /** The dialect, or its name; missing = the one that the file's keys show. */
  readonly dialect?: string | Dialect;
  /** Laid over the file, from left to right. */
  readonly over?: readonly Layer[];
}

export interface MissingEnvironment extends Problem {
  readonly id: string;
  /** Argument of `ratchet env install`; null when nothing is to be installed. */
  readonly install: string | null;
}

export type Advice = Omit<SettingAdvice, 'paths'> & Place;

export interface RunConfig {
  readonly spec: RunSpec;
  readonly warnings: string[];
  /** The step to go on from, where the config asks for one: −1 = the latest. */
  readonly resumeStep: number | null;
  readonly advice: readonly Advice[];
  /** Place in the file of one of our fields. */
  readonly placeOf: (...names: KeyPath[]) => Place;
  /** Environments that are not here. */
  readonly missing: readonly MissingEnvironment[];
  /** The file in our own words. */
  readonly ours: Table;
}

export type ParsedRunConfig =
  | (RunConfig & { readonly ok: true; readonly readAs: ReadAs })
  | { readonly ok: false; readonly problems: Problem[]; readonly readAs: ReadAs | null };
