import { useMemo, useState } from 'preact/hooks';
import type { JSX } from 'preact';
import type { CostAnswer, Marker, RunOverview, SeriesAnswer } from '../answers.ts';
import { markerKinds, type MarkerKind } from '../answers.ts';
import type { ViewProps } from './app.tsx';
import { Chart } from './chart.tsx';
import { clock, counted, duration, figure } from './figures.ts';
import { addressOf, useAnswer } from './hooks.ts';
import type { Line } from './line.ts';
import { NoticeList } from './notice-list.tsx';
import { SteerPanel } from './steer-panel.tsx';
import { TalkPanel } from './talk-panel.tsx';
import { TimelineFigure } from './timeline-figure.tsx';

interface ChartSpec {
  /** Drawn large, and shown without `more`. */
  readonly isMain?: true;
  readonly title: string;
  readonly unit: string;
  readonly lines: readonly Line[];
}

const markersShown = 60;

const line = (metric: string, label: string): Line => ({ metric, label });

/** Charts of what most runs have none of. */
function rareCharts({ metrics, environments }: Pick<RunOverview, 'metrics' | 'environments'>): ChartSpec[] {
  const effects = metrics.filter((name) => name.startsWith('effects/'));
  return [
    {
      title: 'not finished in time',
      unit: 'rollouts of a step',
      lines: environments.map((name) => line(`timed_out/${name}`, name)),
    },
    {
      title: 'calls with an effect',
      unit: 'calls of a step',
      lines: effects.map((name) => line(name, name.slice('effects/'.length).replaceAll('_', ' '))),
    },
  ];
}

/** The charts that a run has the metrics for. */
function chartsOf({
  metrics,
  environments,
  cost,
}: Pick<RunOverview, 'metrics' | 'environments' | 'cost'>): ChartSpec[] {
  const evals = metrics.filter((name) => /^eval\/.+\/(?:greedy\/)?reward\/mean$/.test(name));
  const exact = metrics.filter((name) => /^eval\/.+\/metrics\/exact_match$/.test(name));
  const rewards = environments.length > 1 ? environments.map((name) => line(`reward/${name}/mean`, name)) : [];
  const all: ChartSpec[] = [
    { isMain: true, title: 'reward', unit: 'mean of all that was sampled', lines: [line('train/reward', 'reward')] },
    { title: 'reward by environment', unit: '', lines: rewards },
    { title: 'exact answers', unit: 'share', lines: [line('train/agg/all/metrics/exact_match', 'exact')] },
    {
      isMain: true,
      title: 'evaluations',
      unit: 'mean reward',
      lines: evals.map((name) => line(name, name.replace(/^eval\/|\/reward\/mean$/g, ''))),
    },
    {
      title: 'evaluations, exact',
      unit: 'share',
      lines: exact.map((name) => line(name, name.replace(/^eval\/|\/metrics\/exact_match$/g, ''))),
    },
    { title: 'loss', unit: '', lines: [line(metrics.includes('train/loss') ? 'train/loss' : 'loss', 'loss')] },
    { title: 'entropy', unit: 'nats per token', lines: [line('entropy', 'entropy')] },
    {
      title: 'KL from the reference',
      unit: 'nats per token',
      lines: [line(metrics.includes('train/kl_divergence') ? 'train/kl_divergence' : 'kl_divergence', 'KL')],
    },
    { title: 'trainer and sampler apart', unit: 'mismatch KL, nats', lines: [line('mismatch_kl', 'mismatch')] },
    {
      title: 'length',
      unit: 'tokens',
      lines: [
        line('train/agg/all/num_output_tokens/mean', 'mean'),
        line('train/agg/all/num_output_tokens/max', 'longest'),
      ],
    },
    {
      title: 'cut, and failed',
      unit: 'share',
      lines: [line('train/agg/all/is_truncated/mean', 'cut'), line('train/agg/all/has_error/mean', 'failed')],
    },
    ...rareCharts({ metrics, environments }),
    {
      title: 'age of what is trained',
      unit: 'versions',
      lines: [line('off_policy/mean', 'mean'), line('off_policy/max', 'oldest')],
    },
    {
      title: 'groups',
      unit: 'share solved by',
      lines: [
        line('train/agg/all/solved_all', 'all'),
        line('train/agg/all/solved_some', 'some'),
        line('train/agg/all/solved_none', 'none'),
      ],
    },
    { title: 'gradient', unit: 'norm', lines: [line('grad_norm', 'norm')] },
    { title: 'learning rate', unit: '', lines: [line('train/learning_rate', 'rate')] },
    {
      title: 'time of a step',
      unit: 's',
      lines: [
        line('time/step', 'step'),
        line('time/wait_for_batch', 'waits for a batch'),
        line('time/train', 'trains'),
      ],
    },
  ];
  return [...all, ...costCharts(cost)].flatMap((chart) => {
    const lines = chart.lines.filter(({ metric }) => metrics.includes(metric));
    return lines.length === 0 ? [] : [{ ...chart, lines }];
  });
}

function costCharts(cost: CostAnswer | null): ChartSpec[] {
  return [
    { title: 'spent', unit: `${cost?.currency ?? ''}, all in all`, lines: [line('spent/money', 'spent')] },
    {
      title: 'tokens of a step',
      unit: 'as a server counts them',
      lines: [
        line('cost/prompt_tokens', 'prompt'),
        line('cost/completion_tokens', 'sampled'),
        line('cost/trained_tokens', 'trained'),
      ],
    },
    {
      title: 'cost of a rollout',
      unit: cost?.currency ?? '',
      lines: [line('cost/money_per_rollout', 'a rollout'), line('cost/money_per_reward', 'a point of reward')],
    },
    {
      title: 'tokens of a rollout',
      unit: 'prompts and sampled',
      lines: [line('cost/tokens_per_rollout', 'a rollout'), line('cost/tokens_per_reward', 'a point of reward')],
    },
  ];
}

export function seriesPath(run: string, names: readonly string[]): string {
  const query = names.map((name) => `name=${encodeURIComponent(name)}`).join('&');
  return `/api/runs/${encodeURIComponent(run)}/series?${query}`;
}

export function RunView({ source, run, overview, news, canSteer }: ViewProps): JSX.Element {
  const charts = useMemo(
    () => chartsOf(overview),
    [overview.metrics.join(), overview.environments.join(), overview.cost?.currency],
  );
  const names = charts.flatMap(({ lines }) => lines.map(({ metric }) => metric));
  const series = useAnswer<SeriesAnswer>(source, names.length === 0 ? null : seriesPath(run, names), news);
  const markers = useAnswer<readonly Marker[]>(source, `/api/runs/${encodeURIComponent(run)}/markers`, news);
  const [by, setBy] = useState<'step' | 'time'>('step');
  const [chosen, setChosen] = useState<ReadonlySet<MarkerKind> | null>(null);
  const shown = useMemo(() => chosen ?? defaultMarkers(markers.answer ?? []), [chosen, markers.answer]);
  const marked = useMemo(() => (markers.answer ?? []).filter(({ kind }) => shown.has(kind)), [markers.answer, shown]);
  const [isMore, setMore] = useState(false);
  const [main, more] = [charts.filter(({ isMain }) => isMain), charts.filter(({ isMain }) => !isMain)];
  const chartOf = (chart: ChartSpec): JSX.Element => (
    <Chart
      key={chart.title}
      {...chart}
      isLarge={chart.isMain === true}
      series={series.answer!}
      markers={marked}
      by={by}
    />
  );
  return (
    <>
      {overview.damage !== null && (
        <p class="trouble" role="alert">
          Its newest commit cannot be read: {overview.damage}
        </p>
      )}
      <Standing overview={overview} run={run} />
      {overview.damagedNotices.map((why) => (
        <p class="trouble" key={why}>
          A notice cannot be read: {why}
        </p>
      ))}
      <NoticeList notices={overview.notices} of={overview.noticesOf} />
      {canSteer && (
        <>
          <SteerPanel source={source} run={run} overview={overview} />
          <TalkPanel source={source} run={run} step={overview.step} />
        </>
      )}
      <section aria-labelledby="curves">
        <div class="bar">
          <h2 id="curves">Curves</h2>
          <label>
            by{' '}
            <select value={by} onChange={(event) => setBy(event.currentTarget.value === 'time' ? 'time' : 'step')}>
              <option value="step">step</option>
              <option value="time">time</option>
            </select>
          </label>
          <MarkerChoice markers={markers.answer ?? []} shown={shown} choose={setChosen} />
        </div>
        {series.error !== null && <p class="trouble">{series.error}</p>}
        {charts.length === 0 && <p>It has made no step of its own yet: there is nothing to draw.</p>}
        {series.answer !== null && <div class="charts large">{main.map(chartOf)}</div>}
        {series.answer !== null && more.length > 0 && (
          <details class="more" onToggle={({ currentTarget }) => setMore(currentTarget.open)}>
            <summary>more: {counted(more.length, 'chart')}</summary>
            {isMore && <div class="charts">{more.map(chartOf)}</div>}
          </details>
        )}
        {(series.answer?.stepsPerPoint ?? 1) > 1 && (
          <p class="note">Each point is the mean of {series.answer!.stepsPerPoint} steps.</p>
        )}
        {(series.answer?.left.length ?? 0) > 0 && <p class="note">Dashed: steps that a rewind left behind.</p>}
      </section>
      <TimelineFigure source={source} run={run} news={news} weights={marked.filter(isWeights)} />
      <WhatHappened markers={(markers.answer ?? []).filter((one) => !isWeights(one))} />
    </>
  );
}

/** New weights come with every step: beyond this many, marks merge into a band. */
const weightsMarked = 30;

function defaultMarkers(markers: readonly Marker[]): ReadonlySet<MarkerKind> {
  const isBand = markers.filter(isWeights).length > weightsMarked;
  return new Set(markerKinds.filter((kind) => kind !== 'weights' || !isBand));
}

const isWeights = ({ kind }: Marker): boolean => kind === 'weights';

function Standing({ overview, run }: { readonly overview: RunOverview; readonly run: string }): JSX.Element {
  const { step, maxSteps, state, live, etaSeconds, ettr, lost, stepSeconds } = overview;
  const share = maxSteps > 0 ? Math.min(1, step / maxSteps) : 0;
  return (
    <section class="standing" aria-label="where the run stands">
      <div class="progress">
        <span class={`state state-${state.replaceAll(' ', '-')}`}>{state}</span>
        <progress max={1} value={share} aria-label={`step ${step} of ${maxSteps}`} />
        <b>
          step {step} of {maxSteps}
        </b>
      </div>
      <dl class="facts">
        <Fact name="to go">{state === 'finished' ? 'done' : duration(etaSeconds)}</Fact>
        <Fact name="a step takes">{duration(stepSeconds)}</Fact>
        <Fact name="effective training time (ETTR)">{figure(ettr, 3)}</Fact>
        <Fact name="lost to faults">
          {lost.recoveries === 0
            ? 'nothing'
            : `${counted(lost.rollouts, 'rollout')}, ${duration(lost.seconds)} in ${counted(lost.recoveries, 'recovery', 'recoveries')}`}
        </Fact>
        {overview.rest !== null && <Fact name="time not effective">{overview.rest}</Fact>}
        {overview.cost !== null && <Fact name="cost">{costText(overview.cost)}</Fact>}
        {overview.budget.length > 0 && <Fact name="budget used">{overview.budget.join('; ')}</Fact>}
        <Fact name="lineage">{overview.lineage}</Fact>
        <Fact name="last commit">{clock(overview.committedAt)}</Fact>
        <Fact name="model">
          <span title={overview.model}>{overview.modelName}</span>
        </Fact>
        <Fact name="environments">{overview.environments.join(', ') || '–'}</Fact>
        <Fact name="store">{overview.store}</Fact>
        {overview.temporalUrl !== null && (
          <Fact name="Temporal">
            <a href={overview.temporalUrl} rel="noreferrer" target="_blank">
              its workflow
            </a>
          </Fact>
        )}
        <Fact name="rollouts">
          <a href={addressOf(run, 'rollouts')}>look at them</a>
        </Fact>
      </dl>
      {overview.cost !== null && <CostParts cost={overview.cost} />}
      {live && <Live live={live} />}
    </section>
  );
}

function costText({ money, leftBehind }: CostAnswer): string {
  if (money === null) return 'no prices in its file';
  return leftBehind === null ? money : `${money}, ${leftBehind} of it for steps left behind`;
}

function CostParts({ cost }: { readonly cost: CostAnswer }): JSX.Element {
  return (
    <details class="cost">
      <summary>what it used</summary>
      <ul>
        {cost.parts.map(({ name, money, used }) => (
          <li key={name}>
            <b>{name}</b>
            {money !== null && ` ${money}`}: {used.join(', ')}
          </li>
        ))}
      </ul>
      <p class="note">Not counted: {cost.notCounted}.</p>
    </details>
  );
}

function Fact({ name, children }: { readonly name: string; readonly children: preact.ComponentChildren }): JSX.Element {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

function Live({ live }: { readonly live: NonNullable<RunOverview['live']> }): JSX.Element {
  const { collecting, inPlay, branches, training, waitingOn, warnings, pausedBecause, quarantinedServers } = live;
  const dropped = Object.entries(collecting?.dropped ?? {}).filter(([, count]) => count > 0);
  return (
    <div class="live" aria-live="polite">
      {pausedBecause !== null && <p class="trouble">paused: {pausedBecause}</p>}
      {collecting && (
        <p>
          step {collecting.step}: {collecting.rollouts.done} of {collecting.rollouts.of} rollouts, {collecting.kept} of{' '}
          {collecting.needed} groups kept
          {dropped.map(([why, count]) => ` · ${count} ${why.replace(':', ': ').replaceAll('_', ' ')}`)}
        </p>
      )}
      {inPlay.map(({ environment, groups, since, policyStep }) => (
        <p key={environment}>
          {environment}: {counted(groups, 'group')} in play, the oldest since {clock(since)} from v{policyStep}
        </p>
      ))}
      {branches.map(({ environment, step, since, calls, inPlay: leased }) => (
        <p key={`prompt of ${environment}`}>
          {environment}: a better prompt is looked for from v{step} since {clock(since)}
          {calls !== null && `, ${calls.made} of ${calls.of} calls`}
          {leased !== null && `, in play: ${leased}`}
        </p>
      ))}
      {training && (
        <p>
          step {training.step}: {counted(training.rows, 'row')} are trained since {clock(training.since)}
        </p>
      )}
      {waitingOn.length > 0 && (
        <p>waits for {waitingOn.map(({ what, since }) => `${what} (since ${clock(since)})`).join(' · ')}</p>
      )}
      {quarantinedServers.length > 0 && (
        <p class="trouble">servers with other weights: {quarantinedServers.join(', ')}</p>
      )}
      {warnings.map((warning) => (
        <p class="trouble" key={warning}>
          {warning}
        </p>
      ))}
    </div>
  );
}

function MarkerChoice({
  markers,
  shown,
  choose,
}: {
  readonly markers: readonly Marker[];
  readonly shown: ReadonlySet<MarkerKind>;
  readonly choose: (shown: ReadonlySet<MarkerKind>) => void;
}): JSX.Element {
  const kinds = markerKinds.filter((kind) => markers.some((one) => one.kind === kind));
  return (
    <span class="choice">
      {kinds.map((kind) => (
        <label key={kind}>
          <input
            type="checkbox"
            checked={shown.has(kind)}
            onChange={({ currentTarget }) => {
              const next = new Set(shown);
              if (currentTarget.checked) next.add(kind);
              else next.delete(kind);
              choose(next);
            }}
          />
          <i class={`mark ${kind}`} aria-hidden="true" /> {kind === 'weights' ? 'new weights' : kind}
        </label>
      ))}
    </span>
  );
}

function WhatHappened({ markers }: { readonly markers: readonly Marker[] }): JSX.Element {
  const newest = markers.toReversed().slice(0, markersShown);
  return (
    <section aria-labelledby="happened">
      <h2 id="happened">What happened</h2>
      {newest.length === 0 ? (
        <p>No fault, no rewind, no setting that was changed.</p>
      ) : (
        <ol class="happened">
          {newest.map(({ kind, step, time, text }, i) => (
            <li key={i}>
              <i class={`mark ${kind}`} aria-hidden="true" />
              <small>
                {kind} · step {step} · {clock(time)}
              </small>{' '}
              {text}
            </li>
          ))}
        </ol>
      )}
      {markers.length > markersShown && (
        <p class="note">
          The newest {markersShown} of {markers.length}.
        </p>
      )}
    </section>
  );
}
