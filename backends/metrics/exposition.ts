import { effectivenessOf, timeMetrics, type TimedCommit } from '../../core/rl/effectiveness.ts';
import type { MetricsRow, SinkStates } from '../../core/rl/metric-rows.ts';

/** Metrics that effectiveness is estimated from; the rest of a row is dropped. */
const keptOfRow = new Set<string>([
  ...Object.values(timeMetrics),
  'recovery/count',
  'lost/rollouts',
  'lost/tokens',
  'lost/seconds',
]);

/** The cost of a prompt search has a row of its own, which is no step. */
function isOfSearch(row: MetricsRow): boolean {
  return Object.keys(row).some((name) => name.startsWith('search/') || name.startsWith('trial/'));
}

/** The newest figures of one run, for scrapers. */
export class ScrapedRun {
  readonly run: string;
  #newest: MetricsRow | null = null;
  readonly #evals = new Map<string, MetricsRow>();
  #commits: TimedCommit[] = [];

  constructor(run: string) {
    this.run = run;
  }

  add(row: MetricsRow): void {
    const evaluation = Object.keys(row).find((name) => name.startsWith('eval/'));
    if (evaluation !== undefined) {
      this.#evals.set(evaluation.split('/')[1]!, row);
      return;
    }
    if (isOfSearch(row)) return;
    const known = this.#newest;
    if (known && known.lineage === row.lineage && row.step <= known.step) return; // read again
    if (known && known.lineage !== row.lineage) this.#commits = [];
    this.#newest = row;
    const metrics = Object.entries(row).filter((entry): entry is [string, number] => keptOfRow.has(entry[0]));
    this.#commits.push({ step: row.step, committedAt: String(row['time']), metrics: Object.fromEntries(metrics) });
  }

  /** One sample a line: name, labels, value. */
  samples(states: SinkStates): Sample[] {
    const { run } = this;
    const row = this.#newest;
    const labels = { run, ...(row ? { lineage: row.lineage } : {}) };
    const { ettr, lost } = effectivenessOf(this.#commits);
    return [
      ...(row
        ? [
            { name: 'ratchet_step', labels, value: row.step },
            ...timeOf(row, labels),
            { name: 'ratchet_recoveries', labels, value: lost.recoveries },
            { name: 'ratchet_lost_rollouts', labels, value: lost.rollouts },
            { name: 'ratchet_lost_tokens', labels, value: lost.tokens },
            { name: 'ratchet_lost_seconds', labels, value: lost.seconds },
            ...(ettr === null ? [] : [{ name: 'ratchet_ettr', labels, value: ettr }]),
            ...figures(row, (name) => ({ name: 'ratchet_figure', labels: { ...labels, name } })),
          ]
        : []),
      ...[...this.#evals].flatMap(([environment, evaluated]) => {
        const of = { run, lineage: evaluated.lineage, environment };
        const prefix = `eval/${environment}/`;
        return [
          { name: 'ratchet_eval_step', labels: of, value: evaluated.step },
          ...figures(evaluated, (name) => ({
            name: 'ratchet_eval',
            labels: { ...of, name: name.startsWith(prefix) ? name.slice(prefix.length) : name },
          })),
        ];
      }),
      ...Object.entries(states).flatMap(([sink, { next, rows, failing }]) => [
        { name: 'ratchet_sink_behind_rows', labels: { run, sink }, value: rows - next },
        { name: 'ratchet_sink_failing', labels: { run, sink }, value: failing === null ? 0 : 1 },
      ]),
    ];
  }
}

function timeOf(row: MetricsRow, labels: Sample['labels']): Sample[] {
  const value = Date.parse(String(row['time'])) / 1000;
  return Number.isNaN(value) ? [] : [{ name: 'ratchet_step_time_seconds', labels, value }];
}

/** A run's state; runs that ended as planned are left out. */
export type RunCondition = 'running' | 'paused' | 'failed';
const runStates: readonly RunCondition[] = ['running', 'paused', 'failed'];

/** Emits zeros without any run: an alert needs a 0 to rise from. */
export function stateSamples(states: ReadonlyMap<string, RunCondition>): Sample[] {
  const all = [...states];
  return [
    ...runStates.map((state) => ({
      name: 'ratchet_runs',
      labels: { state },
      value: all.filter(([, one]) => one === state).length,
    })),
    ...all.flatMap(([run, one]) => [
      { name: 'ratchet_run_paused', labels: { run }, value: one === 'paused' ? 1 : 0 },
      { name: 'ratchet_run_failed', labels: { run }, value: one === 'failed' ? 1 : 0 },
    ]),
  ];
}

export interface Sample {
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number;
}

function figures(row: MetricsRow, place: (name: string) => Pick<Sample, 'name' | 'labels'>): Sample[] {
  return Object.entries(row).flatMap(([name, value]) =>
    typeof value === 'number' && name !== 'step' ? [{ ...place(name), value }] : [],
  );
}

/** Descriptions of the metrics; all are gauges of a run's newest state. */
export const exposedMetrics: Readonly<Record<string, string>> = {
  ratchet_workers:
    'Workers of the namespace by role: those that polled within the last minute, and those that hold work.',
  ratchet_tasks:
    'Work for rollout workers (chunks) and for GPU workers (runs), by role and state: waiting for a worker, or running.',
  ratchet_runs: 'Runs by state: running, paused, or failed within the last days and not started again.',
  ratchet_run_paused: '1 while a run is paused, by a person or by itself.',
  ratchet_run_failed: '1 where the newest execution of a run failed within the last days.',
  ratchet_step: 'The step that was committed last.',
  ratchet_step_time_seconds: 'When that step was committed, in seconds since 1970.',
  ratchet_store_failing: '1 while the metrics of a run cannot be read from its store.',
  ratchet_ettr: 'Effective training time ratio of the current lineage, estimated from its commits.',
  ratchet_recoveries: 'Recoveries in the current lineage.',
  ratchet_lost_rollouts: 'Rollouts lost in flight in the current lineage.',
  ratchet_lost_tokens: 'Tokens lost in flight in the current lineage.',
  ratchet_lost_seconds: 'Seconds of work lost in the current lineage.',
  ratchet_figure: 'A metric of the newest step, by its name in metrics.jsonl: train/reward, time/train, ….',
  ratchet_eval_step: 'The policy version that was evaluated last.',
  ratchet_eval: 'A metric of the newest evaluation.',
  ratchet_sink_behind_rows: 'Rows of metrics that a sink has not been sent.',
  ratchet_sink_failing: '1 while a sink does not take rows.',
};

/** Prometheus' text format, version 0.0.4. */
export function exposition(samples: readonly Sample[]): string {
  return Object.entries(exposedMetrics)
    .flatMap(([name, text]) => {
      const own = samples.filter((sample) => sample.name === name);
      if (own.length === 0) return [];
      return [`# HELP ${name} ${text}`, `# TYPE ${name} gauge`, ...own.map(lineOf)];
    })
    .map((line) => `${line}\n`)
    .join('');
}

function lineOf({ name, labels, value }: Sample): string {
  const pairs = Object.entries(labels).map(([key, text]) => `${key}="${escaped(text)}"`);
  return `${name}{${pairs.join(',')}} ${Number.isNaN(value) ? 'NaN' : value}`;
}

function escaped(text: string): string {
  return text.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n');
}
