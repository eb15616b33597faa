import { createHash } from 'node:crypto';
import { askServer, isRefusal } from '../../host/ask-server.ts';
import { asItIs, readBodyText } from '../../host/read-body.ts';
import { RatchetError } from '../../core/errors.ts';
import { timeMetrics } from '../../core/rl/effectiveness.ts';
import type { MetricsRow, MetricsSink, NumberedRow } from '../../core/rl/metric-rows.ts';
import type { RolloutLabel } from '../../core/rl/rollout/rollout-label.ts';
import { causeOf } from '../../host/fetch-cause.ts';
import { timeOf } from './sinks.ts';

const answerMsMax = 30_000;
const rowsAtOnce = 50;
const episodesAtOnce = 1_000;

/** Endpoints; null = not sent. At least one is set. */
export interface Collector {
  readonly traces: string | null;
  readonly metrics: string | null;
}

/** Variables that name a collector for one of them. */
export const endpointVariables = {
  traces: 'OTEL_EXPORTER_OTLP_TRACES_ENDPOINT',
  metrics: 'OTEL_EXPORTER_OTLP_METRICS_ENDPOINT',
} as const satisfies Record<keyof Collector, string>;

export interface OtlpOptions {
  /** Throws if the variables that name it are wrong. */
  readonly collector: () => Collector;
  readonly headers: Readonly<Record<keyof Collector, Readonly<Record<string, string>>>>;
  readonly environment?: Readonly<NodeJS.ProcessEnv>;
  /** Attributes of the run: `rl.run.id`, `rl.model.name` and so on. */
  readonly resource: Readonly<Record<string, string>>;
  /** Unique to this run: basis of span and trace ids. */
  readonly id: string;
  /** Rollouts whose groups ended with a step, and the share to send. */
  readonly episodes: {
    readonly share: number;
    readonly of: (lineage: string, step: number) => Promise<readonly Episode[]>;
  };
}

/** The reported part of a rollout's label; `group` and `index` name it in its lineage. */
type Episode = Omit<RolloutLabel, 'lineage' | 'step'>;

/**
 * OpenTelemetry, by OTLP over HTTP in JSON (opentelemetry.io/docs/specs/otlp). Names are those of the proposed `rl.*`
 * conventions (open-telemetry/semantic-conventions-genai#88): a step is a trace with the spans `rl.loop`, `rl.sample`,
 * `rl.reward` and `rl.train`, and one for each rollout. Every other metric is a gauge, `ratchet.` and its name. The ids
 * of a span follow from run, lineage and step, so a step that is sent again is the same span.
 *
 * OpenTelemetry's SDK is not used, since it dates data by its own clock: rows are sent when they can be, but belong to
 * the time of their commit.
 */
export class OtlpSink implements MetricsSink {
  readonly name = 'opentelemetry';
  readonly #options: OtlpOptions;
  #collector: Collector = { traces: null, metrics: null };

  constructor(options: OtlpOptions) {
    this.#options = options;
  }

  /** A collector does not report what it has. */
  async open(cursor: number): Promise<number> {
    this.#collector = this.#options.collector();
    return Promise.resolve(cursor);
  }

  async send(rows: readonly NumberedRow[]): Promise<void> {
    for (let first = 0; first < rows.length; first += rowsAtOnce) {
      const part = rows.slice(first, first + rowsAtOnce).map(({ row }) => row);
      const steps = part.filter(isStep);
      const resource = { attributes: attributesOf({ 'service.name': 'ratchet', ...this.#options.resource }) };
      const scope = { name: 'ratchet' };
      if (this.#collector.traces !== null && steps.length > 0) {
        const spans = steps.flatMap((row) => spansOf(row, this.#options.id));
        const post = (of: readonly object[]) =>
          this.#post('traces', this.#collector.traces!, {
            resourceSpans: [{ resource, scopeSpans: [{ scope, spans: of }] }],
          });
        await post(spans);
        for (const row of steps) await this.#sendEpisodes(row, post);
      }
      if (this.#collector.metrics === null) continue;
      const metrics = part.flatMap(metricsOf);
      await this.#post('metrics', this.#collector.metrics, {
        resourceMetrics: [{ resource, scopeMetrics: [{ scope, metrics }] }],
      });
    }
  }

  /** Sends a step's rollouts in parts, since collectors may refuse large requests. */
  async #sendEpisodes(row: MetricsRow, post: (spans: readonly object[]) => Promise<void>): Promise<void> {
    const { id, episodes } = this.#options;
    if (episodes.share === 0) return;
    const all = await episodes.of(row.lineage, row.step);
    const chosen = all.filter(({ group, index }) => isChosen([id, row.lineage, group, index], episodes.share));
    for (let first = 0; first < chosen.length; first += episodesAtOnce)
      await post(chosen.slice(first, first + episodesAtOnce).map((episode) => episodeSpan(row, episode, id)));
  }

  place(): string | null {
    return this.#collector.traces ?? this.#collector.metrics;
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  async #post(signal: keyof Collector, url: string, body: object): Promise<void> {
    let answer: Response;
    let said: string;
    const { headers, environment } = this.#options;
    const own = headers[signal]; // they may contain a key
    const server = {
      what: 'The collector (OTEL_EXPORTER_OTLP_ENDPOINT)',
      url,
      keys: Object.keys(own).length === 0 ? [] : ['OTEL_EXPORTER_OTLP_HEADERS'],
      variables: ['OTEL_EXPORTER_OTLP_ENDPOINT', endpointVariables[signal]] as const,
      environment,
    };
    try {
      answer = await askServer(server, url, {
        method: 'POST',
        headers: { 'content-type': 'application/json', ...asItIs },
        secrets: () => own,
        body: JSON.stringify(body),
        signal: AbortSignal.timeout(answerMsMax),
      });
      said = await readBodyText(answer, url, saidBytesMax);
    } catch (cause) {
      if (isRefusal(cause)) throw cause;
      throw new RatchetError('ServerUnavailable', `The collector at ${url} cannot be reached (${causeOf(cause)}).`, {
        cause,
      });
    }
    if (answer.ok) return;
    throw new RatchetError(
      'ServerUnavailable',
      `The collector at ${url} answers ${answer.status}, expected 200 to OTLP in JSON: ${said.slice(0, 200)}`,
    );
  }
}

/** Largest answer read from a collector. It lists rejected points. */
const saidBytesMax = 1024 * 1024;

/** The row of a committed step, and not of an evaluation. */
function isStep(row: MetricsRow): boolean {
  return typeof row[timeMetrics.step] === 'number' && typeof row['time'] === 'string';
}

interface Times {
  /** ms since 1970. */
  readonly from: number;
  readonly to: number;
}

/**
 * Durations are measured; starts are derived from them. Sampling may have begun before the step, parallel to the one
 * before.
 */
function timesOf(row: MetricsRow): Record<'rl.loop' | 'rl.sample' | 'rl.reward' | 'rl.train', Times> {
  const ms = (name: keyof typeof timeMetrics): number => (numberIn(row, timeMetrics[name]) ?? 0) * 1000;
  const to = timeOf(row);
  const from = to - ms('step');
  const ready = Math.min(to, from + ms('waitForBatch'));
  const scored = { from: ready - ms('scoring'), to: ready };
  const trainFrom = Math.min(to, ready + ms('waitForEval'));
  return {
    'rl.loop': { from, to },
    'rl.sample': { from: scored.from - ms('generation'), to: scored.from },
    'rl.reward': scored,
    'rl.train': { from: trainFrom, to: Math.min(to, trainFrom + ms('train')) },
  };
}

/** Attributes that the proposal requires of the spans, if a row has them. */
const spanAttributes: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  'rl.loop': { 'rl.environment.reward.mean': 'train/reward', 'rl.train.loss': 'train/loss' },
  'rl.sample': { 'rl.sample.batch_size': 'batch/rollouts', 'ratchet.off_policy.max': 'off_policy/max' },
  'rl.reward': { 'rl.reward.batch_size': 'batch/rollouts' },
  'rl.train': { 'rl.train.batch_size': 'batch/rows', 'rl.train.tokens': 'batch/trained_tokens' },
};

function digestOf(of: readonly (string | number)[]): Buffer {
  return createHash('sha256').update(of.join('\n')).digest();
}

/** Ids of a step's spans, equal whenever it is sent. */
function idsOf(
  row: MetricsRow,
  id: string,
): { readonly traceId: string; readonly spanId: (...of: (string | number)[]) => string } {
  const digest = (...of: (string | number)[]): Buffer => digestOf([id, row.lineage, row.step, ...of]);
  return {
    traceId: digest('trace').subarray(0, 16).toString('hex'),
    spanId: (...of) =>
      digest(...of)
        .subarray(0, 8)
        .toString('hex'),
  };
}

/** Deterministic by key, so that repeated sends choose the same. */
function isChosen(what: readonly (string | number)[], share: number): boolean {
  return digestOf(what).readUInt32BE(0) < share * 2 ** 32;
}

/**
 * One rollout, below `rl.sample` of its step. Its own time is not recorded: it gets the time in which its step was
 * sampled. Attributes outside the proposal come from an extension of it
 * (alibaba/loongsuite-semantic-conventions-genai#27), or begin with `ratchet.`.
 */
function episodeSpan(row: MetricsRow, episode: Episode, id: string): object {
  const { traceId, spanId } = idsOf(row, id);
  const { from, to } = timesOf(row)['rl.sample'];
  const { group, index, reward, outcome } = episode;
  return {
    traceId,
    spanId: spanId('rl.sample.episode', group, index),
    parentSpanId: spanId('rl.sample'),
    name: 'rl.sample.episode',
    kind: 1,
    startTimeUnixNano: nanoseconds(from),
    endTimeUnixNano: nanoseconds(to),
    attributes: attributesOf({
      'rl.loop.iteration': row.step,
      'rl.environment.name': episode.environment,
      ...(reward === null ? {} : { 'rl.reward.score': reward }),
      'rl.sample.turns': episode.turns,
      'rl.sample.output_tokens': episode.tokens,
      'ratchet.lineage': row.lineage,
      'ratchet.group': group,
      'ratchet.rollout': index,
      'ratchet.example': episode.exampleId,
      'ratchet.outcome': outcome,
      'ratchet.group.end': episode.end,
      'ratchet.policy_version': episode.version,
      'ratchet.policy_version.end': episode.versionEnd,
    }),
    status: reward === null ? { code: 2, message: outcome } : {}, // an error
  };
}

function spansOf(row: MetricsRow, id: string): object[] {
  const { traceId, spanId } = idsOf(row, id);
  return Object.entries(timesOf(row)).map(([name, { from, to }]) => ({
    traceId,
    spanId: spanId(name),
    ...(name === 'rl.loop' ? {} : { parentSpanId: spanId('rl.loop') }),
    name,
    kind: 1, // internal
    startTimeUnixNano: nanoseconds(from),
    endTimeUnixNano: nanoseconds(to),
    attributes: attributesOf({
      'rl.loop.iteration': row.step,
      'ratchet.lineage': row.lineage,
      ...Object.fromEntries(
        Object.entries(spanAttributes[name]!).flatMap(([attribute, metric]) => {
          const value = numberIn(row, metric);
          return value === null ? [] : [[attribute, value] as const];
        }),
      ),
    }),
    status: {},
  }));
}

/** Sums of a step; histograms of one observation. OTLP's DELTA is 1. */
const counters: Readonly<Record<string, readonly [metric: string | null, unit: string]>> = {
  'rl.train.steps': [null, '{step}'],
  'rl.train.tokens': ['batch/trained_tokens', '{token}'],
  'rl.sample.episodes': ['batch/rollouts', '{episode}'],
};
const gauges: Readonly<Record<string, readonly [metric: string, unit: string]>> = {
  'rl.environment.reward.mean': ['train/reward', '1'],
  'rl.environment.episode.length.mean': ['train/agg/all/num_turns/mean', '{step}'],
  'rl.train.loss': ['train/loss', '1'],
};
const secondsBounds = [0.1, 0.3, 1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000];

function metricsOf(row: MetricsRow): object[] {
  const at = timeOf(row);
  const point = { timeUnixNano: nanoseconds(at), attributes: pointAttributes(row) };
  const gauge = (name: string, unit: string, asDouble: number): object => ({
    name,
    unit,
    gauge: { dataPoints: [{ ...point, asDouble }] },
  });
  const all = Object.entries(row).flatMap(([name, value]) =>
    typeof value === 'number' && name !== 'step' ? [gauge(`ratchet.${name.replaceAll('/', '.')}`, '', value)] : [],
  );
  if (!isStep(row)) return all;
  const times = timesOf(row);
  const from = { startTimeUnixNano: nanoseconds(times['rl.loop'].from) };
  const durations = Object.entries(times).map(([name, span]) => {
    const seconds = (span.to - span.from) / 1000;
    const bucket = secondsBounds.findIndex((bound) => seconds <= bound);
    const counts = Array.from({ length: secondsBounds.length + 1 }, () => '0');
    counts[bucket < 0 ? secondsBounds.length : bucket] = '1';
    const data = { ...point, ...from, count: '1', sum: seconds, bucketCounts: counts, explicitBounds: secondsBounds };
    return { name: `${name}.duration`, unit: 's', histogram: { aggregationTemporality: 1, dataPoints: [data] } };
  });
  const sums = Object.entries(counters).flatMap(([name, [metric, unit]]) => {
    const value = metric === null ? 1 : numberIn(row, metric);
    if (value === null) return [];
    const dataPoints = [{ ...point, ...from, asInt: String(Math.round(value)) }];
    return [{ name, unit, sum: { aggregationTemporality: 1, isMonotonic: true, dataPoints } }];
  });
  const named = Object.entries(gauges).flatMap(([name, [metric, unit]]) => {
    const value = numberIn(row, metric);
    return value === null ? [] : [gauge(name, unit, value)];
  });
  return [...durations, ...sums, ...named, ...all];
}

function pointAttributes(row: MetricsRow): object[] {
  return attributesOf({ 'rl.loop.iteration': row.step, 'ratchet.lineage': row.lineage });
}

function attributesOf(values: Readonly<Record<string, string | number>>): object[] {
  return Object.entries(values).map(([key, value]) => ({
    key,
    value:
      typeof value === 'string'
        ? { stringValue: value }
        : Number.isSafeInteger(value)
          ? { intValue: String(value) }
          : { doubleValue: value },
  }));
}

function numberIn(row: MetricsRow, name: string): number | null {
  const value = row[name];
  return typeof value === 'number' ? value : null;
}

function nanoseconds(ms: number): string {
  return `${BigInt(Math.round(ms * 1000)) * 1000n}`;
}
