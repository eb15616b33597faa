import { useEffect, useState } from 'preact/hooks';
import type { JSX } from 'preact';
import type { ListedRun, RunOverview, SeriesAnswer } from '../answers.ts';
import type { ViewProps } from './app.tsx';
import { Chart } from './chart.tsx';
import {
  type Compared,
  comparedMax,
  differingSettings,
  evaluationMetrics,
  experimentsOf,
  linesOf,
  mergedSeries,
} from './compared-runs.ts';
import { duration, figure } from './figures.ts';
import { addressOf, useAnswer } from './hooks.ts';
import { seriesPath } from './run-view.tsx';
import { Scrolls } from './scrolls.tsx';

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

/** Runs of the same folder: settings in which they differ, and their curves in one picture. */
export function CompareView({ source, run, asked, isReport, news }: ViewProps): JSX.Element {
  const list = useAnswer<readonly ListedRun[]>(source, isReport ? null : '/api/runs');
  const named = [...new Set(asked.getAll('with').flatMap((text) => text.split(',')))].filter(
    (name) => name !== '' && name !== run,
  );
  const beside = named.slice(0, comparedMax - 1);
  const runs = [run, ...beside];
  const { found, error } = useCompared(source, runs, news);
  const [by, setBy] = useState<By>('step');
  const [isMean, setMean] = useState(true);
  if (isReport) return <p>A report is of one run. `ratchet ui FOLDER` compares those of a folder.</p>;
  const choices = (list.answer ?? []).filter((one) => one.run !== run && one.step !== null);
  const choose = (next: readonly string[]): void => {
    location.hash = addressOf(run, 'compare', { with: next.join(',') });
  };
  const hasSeeds = experimentsOf(found).length < found.length;
  return (
    <>
      <div class="bar">
        <h2>Compare</h2>
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
      </div>
      {choices.length === 0 && (
        <p>
          There is no other run here. Opened with the folder that holds several (`ratchet ui FOLDER`), they are listed.
        </p>
      )}
      <Choice choices={choices.map((one) => one.run)} named={named} choose={choose} />
      {error !== null && (
        <p class="trouble" role="alert">
          {error}
        </p>
      )}
      {found.length > 1 && (
        <>
          <Differences runs={found} />
          <Curves runs={found} by={by} isMean={hasSeeds && isMean && by === 'step'} />
        </>
      )}
    </>
  );
}

/** Choice of the compared runs. At the limit no other can be chosen, with a message. */
function Choice({
  choices,
  named,
  choose,
}: {
  readonly choices: readonly string[];
  readonly named: readonly string[];
  readonly choose: (next: readonly string[]) => void;
}): JSX.Element {
  const beside = named.slice(0, comparedMax - 1);
  const isFull = beside.length === comparedMax - 1;
  return (
    <>
      <div class="choice" role="group" aria-label="runs to compare with">
        {choices.map((name) => (
          <label key={name}>
            <input
              type="checkbox"
              checked={beside.includes(name)}
              disabled={isFull && !beside.includes(name)}
              onChange={({ currentTarget }) =>
                choose(currentTarget.checked ? [...beside, name] : beside.filter((other) => other !== name))
              }
            />{' '}
            {name}
          </label>
        ))}
      </div>
      {isFull && (
        <p class="note" role="status">
          {comparedMax} runs are compared at most
          {named.length > beside.length && `; not shown: ${named.slice(beside.length).join(', ')}`}
          {choices.length > beside.length && '. Untick one to choose another'}.
        </p>
      )}
    </>
  );
}

function Curves({
  runs,
  by,
  isMean,
}: {
  readonly runs: readonly Compared[];
  readonly by: By;
  readonly isMean: boolean;
}): JSX.Element {
  const lines = linesOf(runs, isMean);
  const costs = runs.flatMap(({ overview }) => overview.cost ?? []);
  return (
    <>
      {by.startsWith('spent/') && costs[0] && <p class="note">Not counted in what was spent: {costs[0].notCounted}.</p>}
      <div class="charts">
        {[reward, ...evaluationMetrics(runs), ...others].map(({ title, metric }) => (
          <Chart
            key={metric}
            title={title}
            unit={by === 'step' ? '' : `by ${axisNames[by]}`}
            lines={lines.map(({ label }) => ({ metric: label, label }))}
            series={mergedSeries(lines, metric, (path) => axisOf(path, by))}
            markers={[]}
            by="step"
            nameOf={(at) => pointName(by, at, costs[0]?.currency ?? '')}
          />
        ))}
      </div>
    </>
  );
}

function useCompared(
  source: ViewProps['source'],
  runs: readonly string[],
  news: number,
): { readonly found: readonly Compared[]; readonly error: string | null } {
  const [found, setFound] = useState<readonly Compared[]>([]);
  const [error, setError] = useState<string | null>(null);
  useEffect(() => {
    let isWanted = true;
    Promise.all(runs.map((name) => read(source, name))).then(
      (all) => {
        if (!isWanted) return;
        setFound(all);
        setError(null);
      },
      (cause: unknown) => {
        if (isWanted) setError(cause instanceof Error ? cause.message : String(cause));
      },
    );
    return () => {
      isWanted = false;
    };
  }, [runs.join(), news]);
  return { found, error };
}

async function read(source: ViewProps['source'], run: string): Promise<Compared> {
  const path = `/api/runs/${encodeURIComponent(run)}`;
  const [overview, settings] = await Promise.all([
    source.get<RunOverview>(path),
    source.get<Readonly<Record<string, string>>>(`${path}/settings`),
  ]);
  const metrics = [reward, ...evaluationMetrics([{ overview }]), ...others].map(({ metric }) => metric);
  const series = await source.get<SeriesAnswer>(
    seriesPath(run, [...metrics, ...axes.filter((one) => one.startsWith('spent/'))]),
  );
  return { run, overview, series, settings };
}

function Differences({ runs }: { readonly runs: readonly Compared[] }): JSX.Element {
  const different = differingSettings(runs);
  const facts: readonly [string, (one: Compared) => string][] = [
    ['step', ({ overview }) => `${overview.step} of ${overview.maxSteps}`],
    ['a step takes', ({ overview }) => duration(overview.stepSeconds)],
    ['ETTR', ({ overview }) => figure(overview.ettr)],
    ['cost', ({ overview }) => overview.cost?.money ?? '–'],
    ...[reward, ...evaluationMetrics(runs)].map(({ title, metric }): [string, (one: Compared) => string] => [
      `${title}, first → last`,
      ({ series }) => endsOf(series.path.values[metric] ?? []),
    ]),
  ];
  return (
    <Scrolls label="settings that differ">
      <table>
        <thead>
          <tr>
            <th scope="col">settings that differ</th>
            {runs.map(({ run }) => (
              <th scope="col" key={run}>
                {run}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {facts.map(([name, tell]) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              {runs.map((one) => (
                <td key={one.run}>{tell(one)}</td>
              ))}
            </tr>
          ))}
          {different.map((name) => (
            <tr key={name}>
              <th scope="row">
                <code>{name}</code>
              </th>
              {runs.map(({ run, settings }) => (
                <td key={run}>{settings[name] ?? '–'}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Scrolls>
  );
}

function endsOf(values: readonly (number | null)[]): string {
  const known = values.filter((value) => value !== null);
  return known.length === 0 ? '–' : `${figure(known[0])} → ${figure(known.at(-1))}`;
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
