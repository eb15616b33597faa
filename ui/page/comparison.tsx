import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { JSX } from 'preact';
import type { ListedRun, RunOverview, SeriesAnswer } from '../answers.ts';
import { Chart, colorNumber } from './chart.tsx';
import {
  type Compared,
  type ComparedLine,
  differingSettings,
  evaluationMetrics,
  experimentsOf,
  lastOf,
  linesOf,
  type Mean,
  mergedSeries,
  pointsOfEach,
} from './compared-runs.ts';
import { duration, figure } from './figures.ts';
import { addressOf } from './hooks.ts';
import { seriesPath } from './run-view.tsx';
import { Scrolls } from './scrolls.tsx';
import type { Source } from './source.ts';

const reward = { title: 'reward', metric: 'train/reward' };
const others = [
  { title: 'exact answers', metric: 'train/agg/all/metrics/exact_match' },
  { title: 'entropy', metric: 'entropy' },
  { title: 'KL from the reference', metric: 'train/kl_divergence' },
  { title: 'length', metric: 'train/agg/all/num_output_tokens/mean' },
  { title: 'time of a step', metric: 'time/step' },
] as const;

/**
 * The horizontal axis of a curve. The last three show what a run had spent by then, evaluations and searches included.
 */
const axes = ['step', 'time', 'spent/tokens', 'spent/gpu_hours', 'spent/money'] as const;
type By = (typeof axes)[number];
const axisNames: Readonly<Record<By, string>> = {
  step: 'step',
  time: 'minutes since its first step',
  'spent/tokens': 'millions of tokens',
  'spent/gpu_hours': 'hours of GPU workers',
  'spent/money': 'cost',
};

/** Most lines that a chart names. Of more it names only the one that is pointed at; the table names all. */
const namedMost = 4;

/** Several runs: a row and a line for each, or for those that differ by their seed alone. */
export function Comparison({
  source,
  runs,
  listed,
}: {
  readonly source: Source;
  readonly runs: readonly string[];
  readonly listed: readonly ListedRun[];
}): JSX.Element {
  const { found, unread, isReading } = useCompared(source, runs, listed);
  const [by, setBy] = useState<By>('step');
  const [isMean, setMean] = useState(true);
  const [focused, setFocused] = useState<string | null>(null);
  const hasSeeds = useMemo(() => experimentsOf(found).length < found.length, [found]);
  const isOfMeans = hasSeeds && isMean && by === 'step';
  const lines = useMemo(() => linesOf(found, isOfMeans), [found, isOfMeans]);
  return (
    <>
      {isReading && found.length < runs.length && (
        <p role="status">
          reading: {found.length} of {runs.length} runs …
        </p>
      )}
      {unread.map(({ run, why }) => (
        <p class="trouble" role="alert" key={run}>
          {run}: {why}
        </p>
      ))}
      {found.length > 1 && (
        <>
          <div class="bar">
            <label>
              by{' '}
              <select
                value={by}
                onChange={({ currentTarget }) => setBy(axes.find((one) => one === currentTarget.value) ?? 'step')}
              >
                {axesOf(found).map((one) => (
                  <option key={one} value={one}>
                    {axisNames[one]}
                  </option>
                ))}
              </select>
            </label>
            {hasSeeds && (
              <label>
                <input
                  type="checkbox"
                  checked={isMean && by === 'step'}
                  disabled={by !== 'step'}
                  onChange={({ currentTarget }) => setMean(currentTarget.checked)}
                />{' '}
                mean over seeds
              </label>
            )}
            {isOfMeans && <small>A band is one standard error of the mean on either side.</small>}
          </div>
          <Differences lines={lines} focused={focused} focus={setFocused} />
          <Curves lines={lines} by={by} focused={focused} />
        </>
      )}
    </>
  );
}

function Curves({
  lines,
  by,
  focused,
}: {
  readonly lines: readonly ComparedLine[];
  readonly by: By;
  readonly focused: string | null;
}): JSX.Element {
  const runs = lines.flatMap((line) => line.runs);
  const costs = runs.flatMap(({ overview }) => overview.cost ?? []);
  const charts = useMemo(
    () =>
      [reward, ...evaluationMetrics(runs), ...others].map(({ title, metric }) => ({
        title,
        metric,
        ...mergedSeries(lines, metric, (path) => axisOf(path, by)),
      })),
    [lines, by],
  );
  return (
    <>
      {by.startsWith('spent/') && costs[0] && <p class="note">Not counted in what was spent: {costs[0].notCounted}.</p>}
      <div class="charts">
        {charts.map(({ title, metric, drawn, series }) => (
          <Chart
            key={metric}
            title={title}
            unit={by === 'step' ? '' : `by ${axisNames[by]}`}
            lines={drawn}
            series={series}
            markers={[]}
            by="step"
            nameOf={(at) => pointName(by, at, costs[0]?.currency ?? '')}
            focused={focused}
            namedMost={namedMost}
          />
        ))}
      </div>
    </>
  );
}

interface Column {
  readonly name: string;
  /** The column is of a setting, whose name is that in a run file. */
  readonly isSetting?: true;
  readonly tell: (line: ComparedLine) => string;
  /** What rows are ordered by; a text where it is none. Null: they cannot be ordered by this column. */
  readonly order: ((line: ComparedLine) => number | string) | null;
}

/** A row for each line: where it stands, and the settings in which the runs differ. */
function Differences({
  lines,
  focused,
  focus,
}: {
  readonly lines: readonly ComparedLine[];
  readonly focused: string | null;
  readonly focus: (label: string | null) => void;
}): JSX.Element {
  const columns = useMemo(() => columnsOf(lines), [lines]);
  const [sorted, setSorted] = useState<{ readonly name: string; readonly isUp: boolean } | null>(null);
  const order = columns.find(({ name }) => name === sorted?.name)?.order;
  const rows = lines.map((line, i) => ({ line, i }));
  if (order) rows.sort((a, b) => compare(order(a.line), order(b.line), sorted!.isUp) || a.i - b.i);
  return (
    <Scrolls label="runs with the settings that differ">
      <table class="compared">
        <thead>
          <tr>
            <th scope="col">run</th>
            {columns.map(({ name, isSetting, order: own }) => (
              <th scope="col" key={name} aria-sort={ariaSort(sorted, name)}>
                {own === null ? (
                  name
                ) : (
                  <button
                    class="link"
                    onClick={() => setSorted({ name, isUp: sorted?.name === name ? !sorted.isUp : false })}
                  >
                    {isSetting ? <code>{name}</code> : name}
                  </button>
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody onMouseLeave={() => focus(null)}>
          {rows.map(({ line, i }) => (
            <tr
              key={line.label}
              class={focused === line.label ? 'focused' : undefined}
              onMouseEnter={() => focus(line.label)}
              onFocusIn={() => focus(line.label)}
              onFocusOut={() => focus(null)}
            >
              <th scope="row">
                <i class={`dot line-${colorNumber(i)}`} aria-hidden="true" />
                {line.runs.map(({ run }) => (
                  <>
                    <a href={addressOf(run)}>{run}</a>{' '}
                  </>
                ))}
              </th>
              {columns.map(({ name, tell }) => (
                <td key={name}>{tell(line)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Scrolls>
  );
}

function columnsOf(lines: readonly ComparedLine[]): Column[] {
  const runs = lines.flatMap((line) => line.runs);
  const settings = differingSettings(runs).map((name): Column => {
    const tell = (line: ComparedLine): string =>
      [...new Set(line.runs.map(({ settings }) => settings[name] ?? '–'))].join(', ');
    return { name, isSetting: true, tell, order: (line) => numberOr(tell(line)) };
  });
  const measured = [...evaluationMetrics(runs), reward].map(({ title, metric }): Column => {
    return {
      name: title,
      tell: (line) => meanText(lastOf(line, metric)),
      order: (line) => lastOf(line, metric)?.mean ?? -Infinity,
    };
  });
  const steps = (line: ComparedLine): number => Math.min(...line.runs.map(({ overview }) => overview.step));
  const seconds = (line: ComparedLine): number =>
    line.runs.reduce((sum, { overview }) => sum + (overview.stepSeconds ?? Number.NaN), 0) / line.runs.length;
  const all: Column[] = [
    ...settings,
    ...measured,
    { name: 'step', tell: (line) => `${steps(line)} of ${line.runs[0]!.overview.maxSteps}`, order: steps },
    { name: 'state', tell: stateOf, order: stateOf },
    { name: 'a step takes', tell: (line) => duration(seconds(line)), order: seconds },
    {
      name: 'ETTR',
      tell: (line) => rangeOf(line, ({ overview }) => overview.ettr),
      order: (line) => line.runs[0]!.overview.ettr ?? 0,
    },
    {
      name: 'cost',
      tell: (line) => line.runs.map(({ overview }) => overview.cost?.money ?? '–').join(', '),
      order: null,
    },
  ];
  return all.filter(({ tell }) => lines.some((line) => !/^[–, ]*$/.test(tell(line))));
}

function stateOf({ runs }: ComparedLine): string {
  return [...new Set(runs.map(({ overview }) => overview.state))].join(', ');
}

function rangeOf(line: ComparedLine, of: (run: Compared) => number | null): string {
  const values = line.runs.flatMap((run) => of(run) ?? []);
  if (values.length === 0) return '–';
  const ends = [Math.min(...values), Math.max(...values)].map((value) => figure(value));
  return ends[0] === ends[1] ? ends[0]! : ends.join(' to ');
}

/** `0.412 ± 0.02`: the newest value, and the standard error of a mean. */
function meanText(last: Mean | null): string {
  if (last === null) return '–';
  if (last.standardError === null) return figure(last.mean);
  // What is left of rounding is no error.
  const isNothing = last.standardError < Math.abs(last.mean) * 1e-12;
  return `${figure(last.mean)} ± ${isNothing ? '0' : figure(last.standardError)}`;
}

function numberOr(text: string): number | string {
  const number = Number(text);
  return text.trim() !== '' && Number.isFinite(number) ? number : text;
}

/** Numbers before texts; the first click puts the greatest first. */
function compare(a: number | string, b: number | string, isUp: boolean): number {
  const rank = typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b), 'en');
  if (Number.isNaN(rank)) return 0;
  return isUp ? rank : -rank;
}

function ariaSort(sorted: { readonly name: string; readonly isUp: boolean } | null, name: string) {
  if (sorted?.name !== name) return undefined;
  return sorted.isUp ? 'ascending' : 'descending';
}

/** Runs read at once: a browser keeps six connections to a server. */
const atOnce = 6;
/** A run that goes on may have evaluations later than the list of runs shows. */
const readAgainMs = 20_000;

interface Reading {
  readonly found: readonly Compared[];
  readonly unread: readonly { readonly run: string; readonly why: string }[];
  readonly isReading: boolean;
}

/** Reads each run once, and again when the list of runs has news of it. */
function useCompared(source: Source, runs: readonly string[], listed: readonly ListedRun[]): Reading {
  const known = useRef(new Map<string, { readonly stamp: string; readonly told: Compared | Error }>());
  const [reading, setReading] = useState<Reading>({ found: [], unread: [], isReading: true });
  const now = Math.floor(Date.now() / readAgainMs);
  const stamps = new Map(listed.map((one) => [one.run, stampOf(one, now)]));
  const wanted = runs.map((run) => `${run} ${stamps.get(run) ?? ''}`).join('\n');
  useEffect(() => {
    const left = new AbortController();
    const tell = (isReading: boolean): void => {
      if (left.signal.aborted) return;
      const all = runs.flatMap((run) => {
        const told = known.current.get(run)?.told;
        return told === undefined ? [] : [{ run, told }];
      });
      setReading({
        found: all.flatMap(({ told }) => (told instanceof Error ? [] : [told])),
        unread: all.flatMap(({ run, told }) => (told instanceof Error ? [{ run, why: told.message }] : [])),
        isReading,
      });
    };
    const due = runs.filter((run) => known.current.get(run)?.stamp !== (stamps.get(run) ?? ''));
    const points = pointsOfEach(runs.length);
    void (async () => {
      tell(due.length > 0);
      for (let i = 0; i < due.length && !left.signal.aborted; i += atOnce) {
        const some = due.slice(i, i + atOnce);
        const told = await Promise.all(some.map((run) => read(source, run, points).catch(asError)));
        some.forEach((run, j) => known.current.set(run, { stamp: stamps.get(run) ?? '', told: told[j]! }));
        tell(i + atOnce < due.length);
      }
    })();
    return () => left.abort();
  }, [source, wanted]);
  return reading;
}

function stampOf({ state, step, committedAt }: ListedRun, now: number): string {
  const isOver = state === 'finished' || state === 'stopped';
  return `${state} ${step} ${committedAt} ${isOver ? '' : now}`;
}

function asError(cause: unknown): Error {
  return cause instanceof Error ? cause : new Error(String(cause));
}

async function read(source: Source, run: string, points: number): Promise<Compared> {
  const path = `/api/runs/${encodeURIComponent(run)}`;
  const [overview, settings] = await Promise.all([
    source.get<RunOverview>(path),
    source.get<Readonly<Record<string, string>>>(`${path}/settings`),
  ]);
  const metrics = [reward, ...evaluationMetrics([{ overview }]), ...others].map(({ metric }) => metric);
  const names = [...metrics, ...axes.filter((one) => one.startsWith('spent/'))];
  const series = await source.get<SeriesAnswer>(`${seriesPath(run, names)}&points=${points}`);
  return { run, overview, series, settings };
}

/** `step 12`, `4 min`, `0.00676 EUR`. */
function pointName(by: By, at: number, currency: string): string {
  const value = at.toLocaleString('en', { maximumSignificantDigits: 4 });
  const names: Readonly<Record<By, string>> = {
    step: `step ${at}`,
    time: duration(at * 60),
    'spent/tokens': `${value} M tokens`,
    'spent/gpu_hours': `${value} GPU worker hours`,
    'spent/money': `${value} ${currency}`.trim(),
  };
  return names[by];
}

/** Axes on which any of the runs can be drawn. */
function axesOf(runs: readonly Compared[]): readonly By[] {
  return axes.filter((one) =>
    runs.some(({ series: { path } }) => axisOf(path, one).some((at) => at !== null && Number.isFinite(at))),
  );
}

/** Position of each point on that axis; null where it is unknown. */
function axisOf(path: SeriesAnswer['path'], by: By): readonly (number | null)[] {
  if (by === 'step') return path.step;
  if (by === 'spent/tokens') return (path.values[by] ?? []).map((tokens) => (tokens === null ? null : tokens / 1e6));
  if (by !== 'time') return path.values[by] ?? [];
  const begin = path.time.find((at) => Number.isFinite(at)) ?? 0;
  return path.time.map((at) => Math.round((at - begin) / 600) / 100);
}
