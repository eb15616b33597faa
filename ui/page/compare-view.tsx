import { useEffect, useState } from 'preact/hooks';
import type { JSX } from 'preact';
import type { ListedRun, RunOverview, SeriesAnswer } from '../answers.ts';
import type { ViewProps } from './app.tsx';
import { Chart } from './chart.tsx';
import { duration, figure } from './figures.ts';
import { addressOf, useAnswer } from './hooks.ts';
import { seriesPath } from './run-view.tsx';

/** Runs beside the one that is open. */
const othersMax = 3;

const compared = [
  { title: 'reward', metric: 'train/reward' },
  { title: 'exact answers', metric: 'train/agg/all/metrics/exact_match' },
  { title: 'entropy', metric: 'entropy' },
  { title: 'KL from the reference', metric: 'train/kl_divergence' },
  { title: 'length', metric: 'train/agg/all/num_output_tokens/mean' },
  { title: 'time of a step', metric: 'time/step' },
] as const;

/** What a curve is drawn by: of the last three, what a run had spent by then, its evaluations and searches included. */
const axes = ['step', 'time', 'spent/tokens', 'spent/gpu_hours', 'spent/money'] as const;
type By = (typeof axes)[number];
const axisNames: Readonly<Record<By, string>> = {
  step: 'step',
  time: 'minutes since its first step',
  'spent/tokens': 'millions of tokens',
  'spent/gpu_hours': 'hours of GPU workers',
  'spent/money': 'cost',
};

interface Compared {
  readonly run: string;
  readonly overview: RunOverview;
  readonly series: SeriesAnswer;
  readonly settings: Readonly<Record<string, string>>;
}

/** Runs of the same folder: settings in which they differ, and their curves in one picture. */
export function CompareView({ source, run, asked, isReport, news }: ViewProps): JSX.Element {
  const list = useAnswer<readonly ListedRun[]>(source, isReport ? null : '/api/runs');
  const others = asked
    .getAll('with')
    .flatMap((text) => text.split(','))
    .filter((name) => name !== '' && name !== run)
    .slice(0, othersMax);
  const runs = [run, ...others];
  const { found, error } = useCompared(source, runs, news);
  const [by, setBy] = useState<By>('step');
  if (isReport) return <p>A report is of one run. `ratchet ui FOLDER` compares those of a folder.</p>;
  const choices = (list.answer ?? []).filter((one) => one.run !== run && one.step !== null);
  const choose = (name: string, isChosen: boolean): void => {
    const next = isChosen ? [...others, name].slice(-othersMax) : others.filter((other) => other !== name);
    location.hash = addressOf(run, 'compare', { with: next.join(',') });
  };
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
      </div>
      {choices.length === 0 && (
        <p>
          There is no other run here. Opened with the folder that holds several (`ratchet ui FOLDER`), they are listed.
        </p>
      )}
      <div class="choice" role="group" aria-label="runs to compare with">
        {choices.map((one) => (
          <label key={one.run}>
            <input
              type="checkbox"
              checked={others.includes(one.run)}
              onChange={({ currentTarget }) => choose(one.run, currentTarget.checked)}
            />{' '}
            {one.run}
          </label>
        ))}
      </div>
      {error !== null && (
        <p class="trouble" role="alert">
          {error}
        </p>
      )}
      {found.length > 1 && (
        <>
          <Differences runs={found} />
          <Curves runs={found} by={by} />
        </>
      )}
    </>
  );
}

function Curves({ runs, by }: { readonly runs: readonly Compared[]; readonly by: By }): JSX.Element {
  const costs = runs.flatMap(({ overview }) => overview.cost ?? []);
  return (
    <>
      {by.startsWith('spent/') && costs[0] && <p class="note">Not counted in what was spent: {costs[0].notCounted}.</p>}
      <div class="charts">
        {compared.map(({ title, metric }) => (
          <Chart
            key={title}
            title={title}
            unit={by === 'step' ? '' : `by ${axisNames[by]}`}
            lines={runs.map(({ run }) => ({ metric: run, label: run }))}
            series={merged(runs, metric, by)}
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
  const [overview, series, settings] = await Promise.all([
    source.get<RunOverview>(path),
    source.get<SeriesAnswer>(
      seriesPath(run, [...compared.map(({ metric }) => metric), ...axes.filter((one) => one.startsWith('spent/'))]),
    ),
    source.get<Readonly<Record<string, string>>>(`${path}/settings`),
  ]);
  return { run, overview, series, settings };
}

function Differences({ runs }: { readonly runs: readonly Compared[] }): JSX.Element {
  const names = [...new Set(runs.flatMap(({ settings }) => Object.keys(settings)))].sort();
  const different = names.filter(
    (name) => name !== 'name' && new Set(runs.map(({ settings }) => settings[name])).size > 1,
  );
  const facts: readonly [string, (one: Compared) => string][] = [
    ['step', ({ overview }) => `${overview.step} of ${overview.maxSteps}`],
    ['a step takes', ({ overview }) => duration(overview.stepSeconds)],
    ['ETTR', ({ overview }) => figure(overview.ettr)],
    ['cost', ({ overview }) => overview.cost?.money ?? '–'],
  ];
  return (
    <div class="scrolls" role="region" aria-label="settings that differ" tabIndex={0}>
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
    </div>
  );
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

/** Those by which any of the runs can be drawn. */
function axesOf(runs: readonly Compared[]): readonly By[] {
  return axes.filter((one) =>
    runs.some(({ series: { path } }) => axisOf(path, one).some((at) => at !== null && Number.isFinite(at))),
  );
}

/** Where each point stands; null where that is not known of it. */
function axisOf(path: SeriesAnswer['path'], by: By): readonly (number | null)[] {
  if (by === 'step') return path.step;
  if (by === 'spent/tokens') return (path.values[by] ?? []).map((tokens) => (tokens === null ? null : tokens / 1e6));
  if (by !== 'time') return path.values[by] ?? [];
  const begin = path.time.find((at) => Number.isFinite(at)) ?? 0;
  return path.time.map((at) => Math.round((at - begin) / 600) / 100);
}

/** One metric of several runs, each a line by its name. */
function merged(runs: readonly Compared[], metric: string, by: By): SeriesAnswer {
  const points = runs.map(({ run, series: { path } }) => {
    const values = axisOf(path, by).flatMap((at, i): [number, number | null][] =>
      at === null ? [] : [[at, path.values[metric]?.[i] ?? null]],
    );
    return { run, values: new Map(values) };
  });
  const all = [...new Set(points.flatMap(({ values }) => [...values.keys()]))].sort((a, b) => a - b);
  return {
    path: {
      lineage: '',
      step: all,
      time: all,
      values: Object.fromEntries(points.map(({ run, values }) => [run, all.map((at) => values.get(at) ?? null)])),
    },
    left: [],
    stepsPerPoint: 1,
  };
}
