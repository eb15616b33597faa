import { z } from 'zod';
import type { HalvingSettings } from '../../core/sweep/halving.ts';
import type { SweepMetric } from '../../core/sweep/sweep.ts';
import { rowsOfGrid, type SettingsRow, type SettingValue } from '../../core/sweep/table.ts';
import { runNamePattern } from '../../core/names.ts';
import { runNameFromFile } from '../run-name.ts';
import { required, setting, tableType } from '../settings/setting.ts';
import type { KeyPath } from '../toml/positions.ts';
import type { Problem } from '../toml/problems.ts';
import type { TomlFile } from '../toml/parse-toml.ts';
import { type FileOptions, readFile } from '../toml/read-file.ts';
import { describe, type Reporter } from '../toml/reporter.ts';
import { isTable, type Table } from '../toml/tables.ts';
import { choice, text, whole } from '../toml/values.ts';

/** Files of `ratchet sweep`: a run file, settings that differ, and how rows are dropped. */

/** The first of three rungs is at a ninth of a run, and a sweep of many rows takes a quarter of the steps. */
const usualRungs = 3;

const halving = {
  eta: setting(whole(2), 'one row of this many goes on after a rung', { default: 3 }),
  rungs: setting(whole(2), 'rungs in all; the last one is at the end of a run; 3 without `min_steps`'),
  min_steps: setting(whole(1), 'steps of the first rung'),
};
const sweep = {
  name: setting(text(), 'begins the names of its runs; the file’s name when missing'),
  run: required(text(), 'the run file, from the folder of this file'),
  metric: required(text(), 'what rows are compared by, by its name in `ratchet metrics`'),
  goal: setting(choice('max', 'min'), 'whether more or less of it is better', { default: 'max' }),
  last_steps: setting(whole(1), 'steps up to a rung over which the metric is averaged', { default: 1 }),
  at_once: setting(whole(1, 64), 'runs that train at once', { default: 1 }),
  seeds: setting(
    z
      .array(z.int().min(0).meta({ expected: 'a whole number ≥ 0' }))
      .min(1)
      .meta({ expected: 'a list of whole numbers ≥ 0, such as [1, 2]' }),
    'a run of each row for each; the seed of the run file when missing',
  ),
  settings: setting(
    z.record(z.string(), z.unknown()).meta({ expected: 'a table: [sweep.settings]' }),
    'lists of values by the name of a setting in the run file: every combination is a row',
  ),
  rows: setting(
    z.array(z.record(z.string(), z.unknown())).meta({ expected: 'a list of tables: [[sweep.rows]]' }),
    'rows of settings, in place of `settings`',
  ),
};
const Sweep = tableType(sweep).extend({ halving: tableType(halving).optional() });
const SweepFile = z.strictObject({ sweep: Sweep });

export interface SweepSpec {
  readonly name: string;
  readonly run: string;
  readonly metric: SweepMetric;
  readonly atOnce: number;
  readonly seeds: readonly number[];
  readonly rows: readonly SettingsRow[];
  readonly halving: HalvingSettings | null;
}

export type ParsedSweepFile =
  | { readonly ok: true; readonly spec: SweepSpec }
  | { readonly ok: false; readonly problems: readonly Problem[] };

/** More would be a mistake: a workflow has a child for each. */
const runsMax = 500;
const runsExpected = `at most ${runsMax} runs`;

/** Reads a file of a sweep. Reports all errors at once. */
export function parseSweepFile(source: string | TomlFile, options: FileOptions): ParsedSweepFile {
  const read = readFile(source, options, { schema: SweepFile, synonyms: {}, keysIn: 'docs/guide/sweeps.md' });
  if (!read.ok) return read;
  const { reporter } = read;
  if (isRunFile(read.written)) {
    const expected = 'a file of a sweep: a table [sweep], whose `run` names a run file';
    return { ok: false, problems: [reporter.placed({ path: ['sweep'], expected, received: 'a run file' })] };
  }
  const file = read.table as z.infer<typeof SweepFile> | undefined;
  if (file === undefined) return { ok: false, problems: reporter.inOrder() };
  const { sweep: of } = file;
  const rows = rowsIn(of, reporter);
  const seeds = [...new Set(of.seeds ?? [])];
  const name = of.name ?? runNameFromFile(options.file);
  const at = ['sweep'];
  if (!runNamePattern.test(name) || name.length > 48) {
    const expected = 'a name of a-z, 0-9 and . _ -, beginning with a letter or digit, at most 48 characters';
    reporter.add({ path: [...at, 'name'], expected, received: describe(name) });
  }
  if (rows.length * Math.max(1, seeds.length) > runsMax) {
    const received = `${rows.length} rows × ${Math.max(1, seeds.length)} seeds`;
    reporter.add({ path: [...at, of.settings === undefined ? 'rows' : 'settings'], expected: runsExpected, received });
  }
  if (reporter.problems.length > 0) return { ok: false, problems: reporter.inOrder() };
  const spec: SweepSpec = {
    name,
    run: of.run,
    metric: { name: of.metric, goal: of.goal, lastSteps: of.last_steps },
    atOnce: of.at_once,
    seeds,
    rows,
    halving: of.halving === undefined ? null : halvingOf(of.halving),
  };
  return { ok: true, spec };
}

/** A file that is to be trained by itself: its keys are not worth a problem each. */
function isRunFile(written: Table): boolean {
  return !Object.hasOwn(written, 'sweep') && (Object.hasOwn(written, 'model') || Object.hasOwn(written, 'env'));
}

function halvingOf({ eta, rungs, min_steps }: NonNullable<z.infer<typeof Sweep>['halving']>): HalvingSettings {
  if (min_steps === undefined) return { eta, rungs: rungs ?? usualRungs, minSteps: null };
  return { eta, rungs: rungs ?? null, minSteps: min_steps };
}

/** Settings that are the sweep's own. */
const notInRows: Readonly<Record<string, string>> = {
  max_steps: 'rows of equal length: max_steps belongs to the run file, and rungs to [sweep.halving]',
  seed: 'seeds = [1, 2] in [sweep]: each row is trained with each',
  name: 'name in [sweep]: runs are named after it',
};

function rowsIn({ settings, rows }: z.infer<typeof Sweep>, reporter: Reporter): SettingsRow[] {
  const at = ['sweep', settings === undefined ? 'rows' : 'settings'];
  if (hasProblemAt(reporter, 'sweep.rows') || hasProblemAt(reporter, 'sweep.settings')) return [];
  if ((settings === undefined) === (rows === undefined)) {
    const expected = 'one of [sweep.settings] and [[sweep.rows]]';
    reporter.add({ path: ['sweep'], expected, received: settings === undefined ? 'neither' : 'both' });
    return [];
  }
  const say = (path: KeyPath, expected: string, received: string) => reporter.add({ path, expected, received });
  const isValue = (path: KeyPath, value: unknown): value is SettingValue => {
    if (isSettingValue(value)) return true;
    const received = Array.isArray(value) ? describe(value.find((one) => !isSettingValue(one))) : describe(value);
    say(path, 'a text, a number, true or false, or a list of these', received);
    return false;
  };
  if (rows !== undefined) {
    if (rows.length === 0) say(at, 'at least one row', 'none');
    return rows.map((row, i) => {
      const flat = Object.entries(flattened(row, [...at, i], say));
      return Object.fromEntries(
        flat.flatMap(([name, value]) => (isValue([...at, i, ...name.split('.')], value) ? [[name, value]] : [])),
      );
    });
  }
  const grid: Record<string, readonly SettingValue[]> = {};
  let count = 1;
  for (const [name, value] of Object.entries(flattened(settings!, at, say))) {
    const path = [...at, ...name.split('.')];
    if (!Array.isArray(value) || value.length === 0)
      say(path, 'a list of values, such as [0.001, 0.003]', describe(value));
    else if (isValue(path, value)) grid[name] = value as readonly SettingValue[];
    count *= grid[name]?.length ?? 1;
  }
  // Before they are made: a few long lists have more combinations than there is memory.
  if (count > runsMax) say(at, runsExpected, `${count} combinations`);
  return count > runsMax ? [] : rowsOfGrid(grid);
}

/** A value that can be typed as a setting. */
function isSettingValue(value: unknown): value is SettingValue {
  if (Array.isArray(value)) return value.every(isSettingValue);
  return typeof value === 'string' || typeof value === 'boolean' || Number.isFinite(value);
}

function hasProblemAt({ problems }: Reporter, path: string): boolean {
  return problems.some(
    (one) => one.path === path || one.path.startsWith(`${path}.`) || one.path.startsWith(`${path}[`),
  );
}

/** `{ sampling: { temperature: 1 } }` as `sampling.temperature`. */
function flattened(
  table: Readonly<Record<string, unknown>>,
  at: KeyPath,
  say: (path: KeyPath, expected: string, received: string) => void,
): Record<string, unknown> {
  const flat: Record<string, unknown> = {};
  const walk = (one: Readonly<Record<string, unknown>>, names: readonly string[]): void => {
    for (const [key, value] of Object.entries(one)) {
      const path = [...names, ...key.split('.')];
      const name = path.join('.');
      const plain = name.replaceAll('-', '_');
      if (isTable(value)) walk(value, path);
      else if (Object.hasOwn(notInRows, plain)) say([...at, ...names, key], notInRows[plain]!, name);
      else if (Object.keys(flat).some((known) => known.replaceAll('-', '_') === plain))
        say([...at, ...names, key], 'each setting once', name);
      else flat[name] = value;
    }
  };
  walk(table, []);
  return flat;
}
