import type { RunOverview, SeriesAnswer } from '../answers.ts';

/** Limit for the open run and those beside it: more lines in one chart cannot be told apart. */
export const comparedMax = 12;

export interface Compared {
  readonly run: string;
  readonly overview: RunOverview;
  readonly series: SeriesAnswer;
  readonly settings: Readonly<Record<string, string>>;
}

/** One line of a chart: a run, or the mean of several that differ by their seed alone. */
interface ComparedLine {
  readonly label: string;
  readonly runs: readonly Compared[];
}

/** Settings of chance, and names: runs that differ only in these are the same experiment. */
const ofOneExperiment =
  /^(?:name|schema_version|seed|sampling\.seed|store\.uri|later.*|(?:wandb|mlflow|notify|cost)\b.*)$/;

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

/** A metric for each line; for several runs their mean, at their common steps. */
export function mergedSeries(
  lines: readonly ComparedLine[],
  metric: string,
  axisOf: (path: SeriesAnswer['path']) => readonly (number | null)[],
): SeriesAnswer {
  const points = lines.map(({ runs }) => meanOf(runs.map(({ series }) => pointsOf(series.path, metric, axisOf))));
  const all = [...new Set(points.flatMap((values) => [...values.keys()]))].sort((a, b) => a - b);
  const values = lines.map(({ label }, i) => [label, all.map((at) => points[i]!.get(at) ?? null)] as const);
  return {
    path: { lineage: '', step: all, time: all, values: Object.fromEntries(values) },
    left: [],
    stepsPerPoint: 1,
  };
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

function meanOf(points: readonly ReadonlyMap<number, number>[]): ReadonlyMap<number, number> {
  const [first = new Map<number, number>(), ...others] = points;
  if (others.length === 0) return first;
  const common = [...first.keys()].filter((at) => others.every((one) => one.has(at)));
  return new Map(common.map((at) => [at, points.reduce((sum, one) => sum + one.get(at)!, 0) / points.length]));
}
