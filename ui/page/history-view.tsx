import { useState } from 'preact/hooks';
import type { JSX } from 'preact';
import { describeEffects } from '../../core/rl/rollout/effects.ts';
import type { HistogramAnswer, HistoryAnswer, SeriesAnswer } from '../answers.ts';
import type { ViewProps } from './app.tsx';
import { Chart } from './chart.tsx';
import { clock, counted, figure } from './figures.ts';
import { useAnswer } from './hooks.ts';
import { seriesPath } from './run-view.tsx';

/** Fates of all groups, the lineages with their checkpoints, and how rewards and pools moved. */
export function HistoryView({ source, run, overview, news }: ViewProps): JSX.Element {
  const path = `/api/runs/${encodeURIComponent(run)}`;
  const history = useAnswer<HistoryAnswer>(source, `${path}/history`, news);
  const pools = overview.metrics.filter((name) => /^pool\/(?:easy|normal|hard)$/.test(name));
  const series = useAnswer<SeriesAnswer>(source, pools.length === 0 ? null : seriesPath(run, pools), news);
  return (
    <>
      {history.error !== null && (
        <p class="trouble" role="alert">
          {history.error}
        </p>
      )}
      {history.answer === null && history.error === null && <p role="status">reading the commits …</p>}
      {history.answer !== null && (
        <>
          <Balance history={history.answer} />
          <Lineages history={history.answer} />
        </>
      )}
      <Rewards source={source} run={run} environments={overview.environments} news={news} />
      {series.answer !== null && (
        <div class="charts">
          <Chart
            title="pools of the curriculum"
            unit="examples"
            lines={pools.map((metric) => ({ metric, label: metric.slice('pool/'.length) }))}
            series={series.answer}
            markers={[]}
            by="step"
          />
        </div>
      )}
    </>
  );
}

function Balance({ history }: { readonly history: HistoryAnswer }): JSX.Element {
  const { issued, counts, pending, superseded, timedOut, isSound } = history;
  const effects = describeEffects(history.effects);
  const late = Object.entries(timedOut).map(([environment, count]) => `${counted(count, 'rollout')} of ${environment}`);
  const states = Object.entries(counts).sort(([, a], [, b]) => b - a);
  const share = (count: number): string => (issued === 0 ? '–' : `${figure((count / issued) * 100, 1)} %`);
  const rows: [string, number][] = [
    ...states,
    ['still open', pending],
    ...(superseded > 0 ? [['left behind by rewinds', superseded] as [string, number]] : []),
  ];
  return (
    <section aria-labelledby="ledger">
      <h2 id="ledger">Ledger</h2>
      <p class={isSound ? '' : 'trouble'}>
        {counted(issued, 'group')} issued.{' '}
        {isSound
          ? 'Each of them ended once, or is open: the commits prove it.'
          : 'They do not balance. `ratchet audit` says which are missing, and `ratchet fsck` what is damaged.'}
      </p>
      <table class="narrow">
        <thead>
          <tr>
            <th scope="col">its end</th>
            <th scope="col">groups</th>
            <th scope="col">share</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(([state, count]) => (
            <tr key={state}>
              <th scope="row">{state.replace(':', ': ').replaceAll('_', ' ')}</th>
              <td class="number">{count.toLocaleString('en')}</td>
              <td class="number">{share(count)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {effects !== '' && <p>Calls with an effect: {effects}.</p>}
      {late.length > 0 && <p>Not finished in time: {late.join(', ')}.</p>}
    </section>
  );
}

const laneHeight = 26;

function Lineages({ history }: { readonly history: HistoryAnswer }): JSX.Element {
  const { lineages } = history;
  const most = Math.max(1, ...lineages.map(({ head }) => head));
  const x = (step: number): number => 10 + (step / most) * 980;
  const y = (name: string): number => lineages.findIndex(({ lineage }) => lineage === name) * laneHeight + 13;
  const height = lineages.length * laneHeight;
  return (
    <section aria-labelledby="lineages">
      <h2 id="lineages">Lineages and checkpoints</h2>
      <svg
        viewBox={`0 0 1000 ${height}`}
        class="lineages"
        aria-hidden="true"
        preserveAspectRatio="none"
        height={height}
      >
        {lineages.map(({ lineage, from, first, head, checkpoints }) => (
          <g key={lineage}>
            {from !== null && y(from.lineage) >= 0 && (
              <path d={`M ${x(from.step)} ${y(from.lineage)} V ${y(lineage)}`} class="branch" />
            )}
            <path d={`M ${x(first)} ${y(lineage)} H ${x(head)}`} class="stem" />
            {checkpoints.map((step) => (
              <rect key={step} x={x(step) - 3} y={y(lineage) - 5} width="6" height="10" class="sealed" />
            ))}
          </g>
        ))}
      </svg>
      <ol class="happened">
        {lineages.map(({ lineage, from, begunAt, head, checkpoints }, i) => (
          <li key={lineage}>
            <b>{lineage}</b>
            {i === lineages.length - 1 && ' (current)'}:{' '}
            {from === null
              ? 'began with the model'
              : `began at step ${from.step} of ${from.lineage}${y(from.lineage) < 0 ? ` of ${from.run}` : ''}`}
            {begunAt !== null && `, ${clock(begunAt)}`}; step {head};{' '}
            {checkpoints.length === 0
              ? 'no checkpoint of its own'
              : `${counted(checkpoints.length, 'checkpoint')}: ${checkpoints.slice(-12).join(', ')}`}
          </li>
        ))}
      </ol>
      <p class="note">
        To go back: <code>npx ratchet-rl rewind {'RUN --step N'}</code>. To try something else beside:{' '}
        <code>npx ratchet-rl fork</code>.
      </p>
    </section>
  );
}

function Rewards({
  source,
  run,
  environments,
  news,
}: Pick<ViewProps, 'source' | 'run' | 'news'> & { readonly environments: readonly string[] }): JSX.Element {
  const [environment, setEnvironment] = useState('');
  const query = environment === '' ? '' : `?environment=${encodeURIComponent(environment)}`;
  const { answer, error } = useAnswer<HistogramAnswer>(
    source,
    `/api/runs/${encodeURIComponent(run)}/histogram${query}`,
    news,
  );
  return (
    <section aria-labelledby="rewards">
      <div class="bar">
        <h2 id="rewards">Rewards over time</h2>
        {environments.length > 1 && (
          <label>
            environment{' '}
            <select value={environment} onChange={({ currentTarget }) => setEnvironment(currentTarget.value)}>
              <option value="">all</option>
              {environments.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </label>
        )}
      </div>
      {error !== null && <p class="note">{error}</p>}
      {answer?.columns.length === 0 && <p>No rollout with a reward is indexed yet.</p>}
      {answer !== null && answer.columns.length > 0 && <Histogram histogram={answer} />}
    </section>
  );
}

function Histogram({ histogram }: { readonly histogram: HistogramAnswer }): JSX.Element {
  const { least, most, columns } = histogram;
  const bins = columns[0]!.counts.length;
  const [width, height] = [1000 / columns.length, 160 / bins];
  const label = columns
    .filter((_, i) => i === 0 || i === columns.length - 1)
    .map(({ from, to, counts }) => {
      const all = counts.reduce((a, b) => a + b, 0);
      const upper = counts.slice(Math.ceil(bins / 2)).reduce((a, b) => a + b, 0);
      return `steps ${from} to ${to}: ${Math.round((upper / Math.max(1, all)) * 100)} % in the upper half`;
    })
    .join('; ');
  return (
    <figure class="histogram">
      <svg
        viewBox="0 0 1000 160"
        preserveAspectRatio="none"
        height="160"
        role="img"
        aria-label={`How many rollouts have which reward. ${label}.`}
      >
        {columns.flatMap(({ from, to, counts }, i) => {
          const all = Math.max(1, ...counts);
          return counts.map((count, bin) =>
            count === 0 ? null : (
              <rect
                key={`${i} ${bin}`}
                x={i * width}
                y={160 - (bin + 1) * height}
                width={width}
                height={height}
                class="cell"
                fill-opacity={0.12 + 0.88 * (count / all)}
              >
                <title>{`steps ${from} to ${to}: ${count}`}</title>
              </rect>
            ),
          );
        })}
      </svg>
      <figcaption class="note">
        From {figure(least)} below to {figure(most)} above, steps {columns[0]!.from} to {columns.at(-1)!.to}. The
        darker, the more of that step’s rollouts.
      </figcaption>
    </figure>
  );
}
