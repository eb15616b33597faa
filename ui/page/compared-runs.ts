import type { RunOverview, SeriesAnswer } from '../answers.ts';
import type { Line } from './line.ts';

export interface Compared {
  readonly run: string;
  readonly overview: RunOverview;
  readonly series: SeriesAnswer;
  readonly settings: Readonly<Record<string, string>>;
}

/** One line of a chart: a run, or the mean of several that differ by their seed alone. */
export interface ComparedLine {
  readonly label: string;
  readonly runs: readonly Compared[];
}

/** A value of several runs. */
export interface Mean {
  readonly mean: number;
  /** Null for a single run. */
  readonly standardError: number | null;
}

/** Settings of chance, and names: runs that differ only in these are the same experiment. */
const ofOneExperiment =
  /^(?:name|schema_version|seed|sampling\.seed|store\.uri|later.*|(?:wandb|mlflow|notify|cost)\b.*)$/;

/** Points of all curves of a metric together: more would not be seen, and would take long to read. */
const pointsOfAll = 12_000;
const [pointsLeast, pointsMost] = [40, 1_000];

/** Points that each of so many runs is asked for. */
export function pointsOfEach(runs: number): number {
  return Math.max(pointsLeast, Math.min(pointsMost, Math.floor(pointsOfAll / Math.max(1, runs))));
}

export function differingSettings(runs: readonly Pick<Compared, 'settings'>[]): string[] {
  const names = [...new Set(runs.flatMap(({ settings }) => Object.keys(settings)))].sort();
  return names.filter((name) => name !== 'name' && new Set(runs.map(({ settings }) => settings[name])).size > 1);
}

/** Runs by experiment, in the order of their first runs. */
export function experimentsOf<One extends Pick<Compared, 'settings'>>(runs: readonly One[]): One[][] {
  const experiments = new Map<string, One[]>();
  for (const run of runs) {
    const settings = Object.entries(run.settings).filter(([name]) => !ofOneExperiment.test(name));
    const key = JSON.stringify(settings.sort(([a], [b]) => (a < b ? -1 : 1)));
    experiments.set(key, [...(experiments.get(key) ?? []), run]);
  }
  return [...experiments.values()];
}

export function linesOf(runs: readonly Compared[], isMean: boolean): ComparedLine[] {
  if (!isMean) return runs.map((one) => ({ label: one.run, runs: [one] }));
  return experimentsOf(runs).map((own) => ({
    label: own.length === 1 ? own[0]!.run : `${own[0]!.run}, mean of ${own.length} seeds`,
    runs: own,
  }));
}

/** Evaluations of any of the runs, one chart each. */
export function evaluationMetrics(runs: readonly Pick<Compared, 'overview'>[]): { title: string; metric: string }[] {
  const names = [...new Set(runs.flatMap(({ overview }) => overview.metrics))].sort();
  return names.flatMap((metric) => {
    const [, environment, greedy] = /^eval\/(.+?)\/(greedy\/)?reward\/mean$/.exec(metric) ?? [];
    return environment === undefined
      ? []
      : [{ title: `evaluation, ${environment}${greedy === undefined ? '' : ', greedy'}`, metric }];
  });
}

/** A metric for each line; for several runs their mean at their common steps, with a band of its standard error. */
export function mergedSeries(
  lines: readonly ComparedLine[],
  metric: string,
  axisOf: (path: SeriesAnswer['path']) => readonly (number | null)[],
): { readonly drawn: readonly Line[]; readonly series: SeriesAnswer } {
  const points = lines.map(({ runs }) => meansOf(runs.map(({ series }) => pointsOf(series.path, metric, axisOf))));
  const all = [...new Set(points.flatMap((values) => [...values.keys()]))].sort((a, b) => a - b);
  const values: Record<string, readonly (number | null)[]> = {};
  const drawn = lines.map(({ label, runs }, i): Line => {
    const at = all.map((x) => points[i]!.get(x) ?? null);
    values[label] = at.map((one) => one && one.mean);
    if (runs.length === 1) return { metric: label, label };
    const band = { low: `low of ${label}`, high: `high of ${label}` };
    values[band.low] = at.map((one) => one && one.mean - one.standardError!);
    values[band.high] = at.map((one) => one && one.mean + one.standardError!);
    return { metric: label, label, band };
  });
  return { drawn, series: { path: { lineage: '', step: all, time: all, values }, left: [], stepsPerPoint: 1 } };
}

/** The newest value of a metric at a step that all runs of the line have; null without any. */
export function lastOf({ runs }: ComparedLine, metric: string): (Mean & { readonly step: number }) | null {
  const means = meansOf(runs.map(({ series }) => pointsOf(series.path, metric, ({ step }) => step)));
  const step = Math.max(...means.keys());
  const last = means.get(step);
  return last === undefined ? null : { ...last, step };
}

function pointsOf(
  path: SeriesAnswer['path'],
  metric: string,
  axisOf: (path: SeriesAnswer['path']) => readonly (number | null)[],
): Map<number, number> {
  const values = path.values[metric] ?? [];
  return new Map(
    axisOf(path).flatMap((at, i): [number, number][] => {
      const value = values[i] ?? null;
      return at === null || value === null ? [] : [[at, value]];
    }),
  );
}

function meansOf(points: readonly ReadonlyMap<number, number>[]): ReadonlyMap<number, Mean> {
  const [first = new Map<number, number>(), ...others] = points;
  const common = [...first.keys()].filter((at) => others.every((one) => one.has(at)));
  return new Map(common.map((at) => [at, meanOf(points.map((one) => one.get(at)!))]));
}

function meanOf(values: readonly number[]): Mean {
  const n = values.length;
  const mean = values.reduce((sum, value) => sum + value, 0) / n;
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return { mean, standardError: n < 2 ? null : Math.sqrt(squares / (n - 1) / n) };
}
