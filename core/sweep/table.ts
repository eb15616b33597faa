/** Settings of a sweep, and the runs that they become. */

/** Value of a setting, as in a TOML file. */
export type SettingValue = string | number | boolean | readonly SettingValue[];

/** Settings by their names in the run file: `sampling.temperature`. */
export type SettingsRow = Readonly<Record<string, SettingValue>>;

/** One run of a sweep. */
export interface SweepRun {
  readonly name: string;
  /** Index of its row of settings, from 0. */
  readonly row: number;
  /** null: the seed of the run file. */
  readonly seed: number | null;
  /** Settings as on the command line: names with values as typed. */
  readonly overrides: Readonly<Record<string, string>>;
}

/** Every combination of these values. The last setting varies fastest. A grid without settings has one empty row. */
export function rowsOfGrid(grid: Readonly<Record<string, readonly SettingValue[]>>): SettingsRow[] {
  let rows: SettingsRow[] = [{}];
  for (const [name, values] of Object.entries(grid))
    rows = rows.flatMap((row) => values.map((value) => ({ ...row, [name]: value })));
  return rows;
}

/**
 * The runs of a sweep, row by row and seed by seed: `NAME-02-s7` is row 2 with seed 7, `NAME-02` a row of a sweep
 * without seeds.
 */
export function sweepRuns(name: string, rows: readonly SettingsRow[], seeds: readonly number[]): SweepRun[] {
  const digits = Math.max(2, String(rows.length).length);
  return rows.flatMap((settings, row): SweepRun[] => {
    const numbered = `${name}-${String(row + 1).padStart(digits, '0')}`;
    const typed = Object.fromEntries(Object.entries(settings).map(([key, value]) => [key, typedValue(value)]));
    if (seeds.length === 0) return [{ name: numbered, row, seed: null, overrides: typed }];
    return seeds.map((seed) => ({
      name: `${numbered}-s${seed}`,
      row,
      seed,
      overrides: { ...typed, seed: String(seed) },
    }));
  });
}

/** A value as it is typed on the command line: in TOML. */
export function typedValue(value: SettingValue): string {
  return JSON.stringify(value);
}

/** `learning_rate 0.001, sampling.temperature 0.7`; `as in the file` for an empty row. */
export function describeRow(row: SettingsRow): string {
  const settings = Object.entries(row).map(([name, value]) => {
    return `${name} ${typeof value === 'string' ? value : JSON.stringify(value)}`;
  });
  return settings.length === 0 ? 'as in the file' : settings.join(', ');
}
