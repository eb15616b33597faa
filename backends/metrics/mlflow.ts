import { z } from 'zod';
import { jsonOrNull } from '../../core/json-or-null.ts';
import { askServer, isRefusal } from '../../host/ask-server.ts';
import type { ServerVariable } from '../../host/grants.ts';
import { asItIs, readBodyText } from '../../host/read-body.ts';
import { RatchetError } from '../../core/errors.ts';
import { quoted } from '../../core/steering.ts';
import { unlike } from '../answer-words.ts';
import { causeOf } from '../../host/fetch-cause.ts';
import { firstLineage, lineageNumber } from '../../core/names.ts';
import type { MetricsSink, NumberedRow } from '../../core/rl/metric-rows.ts';
import { timeOf } from './sinks.ts';

/** MLflow's limits for one request: 1000 metrics, 100 params (mlflow/utils/validation.py). */
const metricsAtOnce = 900;
const paramsAtOnce = 100;
const paramCharactersMax = 500;
/** Limit of one page of a metric's history, or of a search. */
const pageSize = 1_000;
const answerMsMax = 60_000;

const tagNames = { id: 'ratchet.id', lineage: 'ratchet.lineage', next: 'ratchet.next', hasParams: 'ratchet.params' };

interface MlflowOptions {
  /** `http(s)://host:port`, of the tracking server; throws where none was named. */
  readonly trackingUri: () => string;
  /** The variable that named the server, if the run did not. */
  readonly variables?: readonly ServerVariable[];
  readonly experiment: string;
  readonly runName: string;
  /** Unique to this run, the same on every resume. */
  readonly id: string;
  readonly params: object;
  readonly environment?: Readonly<NodeJS.ProcessEnv>;
}

interface Point {
  readonly key: string;
  readonly value: number;
  /** ms since 1970. */
  readonly timestamp: number;
  readonly step: number;
}

interface TrackedRun {
  readonly runId: string;
  hasParams: boolean;
  isRunning: boolean;
  /** The last rows may not have been acknowledged: the server's state is read first. */
  isUnsure: boolean;
}

const Run = z.object({
  info: z.object({ run_id: z.string(), status: z.string() }),
  data: z.object({ tags: z.array(z.object({ key: z.string(), value: z.string() })).nullish() }).nullish(),
});
type AnsweredRun = z.infer<typeof Run>;

/** The used fields of its answers. */
const Answers = {
  experiment: z.object({
    experiment: z.object({ experiment_id: z.string(), lifecycle_stage: z.string().nullish() }),
  }),
  created: z.object({ experiment_id: z.string() }),
  runs: z.object({ runs: z.array(Run).nullish() }),
  run: z.object({ run: Run }),
  history: z.object({
    metrics: z.array(z.object({ step: z.union([z.int(), z.string().regex(/^\d+$/)]).nullish() })).nullish(),
    next_page_token: z.string().nullish(),
  }),
  nothing: z.looseObject({}),
} as const;

/**
 * MLflow's tracking server, over its REST API (mlflow.org/docs/latest/rest-api.html, 2.0). A lineage is an MLflow run
 * of its own, since steps of a run only go up; the first one is the parent of the others.
 *
 * The server itself records how far a run is: the tag `ratchet.next`, the number of the next row, is sent with each
 * batch of rows. The server writes a batch's metrics before its tags, so metrics left by a kill between the two exist
 * already, and are not sent again.
 */
export class MlflowSink implements MetricsSink {
  readonly name = 'mlflow';
  readonly #options: MlflowOptions;
  #experimentId = '';
  readonly #runs = new Map<string, TrackedRun>();

  constructor(options: MlflowOptions) {
    this.#options = options;
  }

  async open(): Promise<number> {
    this.#runs.clear();
    this.#experimentId = await this.#experiment();
    let next = 0;
    for (const { info, data } of await this.#search()) {
      const tags = new Map(data?.tags?.map(({ key, value }) => [key, value]));
      next = Math.max(next, rowIn(tags.get(tagNames.next) ?? '0', this.#base));
      this.#runs.set(tags.get(tagNames.lineage) ?? firstLineage, {
        runId: info.run_id,
        hasParams: tags.has(tagNames.hasParams),
        isRunning: info.status === 'RUNNING',
        isUnsure: true,
      });
    }
    return next;
  }

  /** In order of number, so that `ratchet.next` never exceeds the stored rows. */
  async send(rows: readonly NumberedRow[]): Promise<void> {
    for (const batch of batchesOf(rows)) {
      const run = await this.#runOf(batch[0]!.row.lineage);
      const points = batch.flatMap(pointsOf);
      const missing = run.isUnsure ? await this.#missing(run, points) : points;
      const next = String(batch.at(-1)!.number + 1);
      const parts = slices(missing, metricsAtOnce);
      for (const [i, metrics] of (parts.length === 0 ? [[]] : parts).entries()) {
        const isLast = i >= parts.length - 1;
        const tags = isLast ? [{ key: tagNames.next, value: next }] : [];
        await this.#post('runs/log-batch', { run_id: run.runId, metrics, tags });
      }
      run.isUnsure = false;
    }
  }

  place(): string | null {
    const first = this.#runs.get(firstLineage) ?? this.#runs.values().next().value;
    return first ? `${this.#base}/#/experiments/${this.#experimentId}/runs/${first.runId}` : null;
  }

  async close(isRunOver: boolean): Promise<void> {
    if (!isRunOver) return;
    for (const run of this.#runs.values()) {
      if (!run.isRunning) continue;
      await this.#post('runs/update', { run_id: run.runId, status: 'FINISHED', end_time: Date.now() });
      run.isRunning = false;
    }
  }

  get #base(): string {
    return this.#options.trackingUri().replace(/\/+$/, '');
  }

  async #experiment(): Promise<string> {
    const { experiment } = this.#options;
    const found = await this.#ask(
      Answers.experiment,
      `experiments/get-by-name?experiment_name=${encodeURIComponent(experiment)}`,
      { method: 'GET' },
      'RESOURCE_DOES_NOT_EXIST',
    );
    if (found?.experiment.lifecycle_stage === 'deleted') {
      throw new RatchetError(
        'ConfigInvalid',
        `mlflow.experiment: the experiment ${JSON.stringify(experiment)} of ${this.#base} was deleted. Restore it there, or name another.`,
      );
    }
    if (found) return found.experiment.experiment_id;
    return (await this.#post('experiments/create', { name: experiment }, Answers.created)).experiment_id;
  }

  /** All records of this run, oldest first: of two for one lineage, the older counts. */
  async #search(): Promise<AnsweredRun[]> {
    const asked = {
      experiment_ids: [this.#experimentId],
      filter: `tags.\`${tagNames.id}\` = '${this.#options.id}'`,
      order_by: ['attributes.start_time DESC'],
      max_results: pageSize,
    };
    const { runs } = await this.#post('runs/search', asked, Answers.runs);
    return runs ?? []; // a later entry replaces an earlier one in the map
  }

  async #runOf(lineage: string): Promise<TrackedRun> {
    const run = this.#runs.get(lineage) ?? (await this.#begin(lineage));
    if (!run.hasParams) {
      for (const params of slices(paramsOf(this.#options.params), paramsAtOnce)) {
        await this.#post('runs/log-batch', { run_id: run.runId, params });
      }
      await this.#post('runs/set-tag', { run_id: run.runId, key: tagNames.hasParams, value: 'all' });
      run.hasParams = true;
    }
    if (!run.isRunning) {
      await this.#post('runs/update', { run_id: run.runId, status: 'RUNNING' });
      run.isRunning = true;
    }
    return run;
  }

  async #begin(lineage: string): Promise<TrackedRun> {
    const { id, runName } = this.#options;
    const parent = lineage === firstLineage ? undefined : this.#runs.get(firstLineage)?.runId;
    const asked = {
      experiment_id: this.#experimentId,
      run_name: lineage === firstLineage ? runName : `${runName} (lineage ${lineageNumber(lineage)})`,
      start_time: Date.now(),
      tags: [
        { key: tagNames.id, value: id },
        { key: tagNames.lineage, value: lineage },
        { key: 'mlflow.source.name', value: 'ratchet' },
        ...(parent === undefined ? [] : [{ key: 'mlflow.parentRunId', value: parent }]),
      ],
    };
    const { run } = await this.#post('runs/create', asked, Answers.run);
    const begun = { runId: run.info.run_id, hasParams: false, isRunning: true, isUnsure: false };
    this.#runs.set(lineage, begun);
    return begun;
  }

  /** The points that the server lacks: in a lineage, a key and a step identify one. */
  async #missing(run: TrackedRun, points: readonly Point[]): Promise<Point[]> {
    const missing: Point[] = [];
    for (const key of new Set(points.map((point) => point.key))) {
      const steps = await this.#stepsOf(run, key);
      missing.push(...points.filter((point) => point.key === key && !steps.has(point.step)));
    }
    return missing;
  }

  async #stepsOf({ runId }: TrackedRun, key: string): Promise<Set<number>> {
    const steps = new Set<number>();
    const pages = new Set<string>();
    for (let page = ''; ;) {
      const query = new URLSearchParams({
        run_id: runId,
        metric_key: key,
        max_results: String(pageSize),
        ...(page && { page_token: page }),
      });
      const answer = await this.#ask(
        Answers.history,
        `metrics/get-history?${query.toString()}`,
        { method: 'GET' },
        'RESOURCE_DOES_NOT_EXIST',
      );
      for (const { step } of answer?.metrics ?? []) steps.add(Number(step ?? 0));
      page = answer?.next_page_token ?? '';
      if (page === '') return steps;
      if (pages.has(page))
        throw new RatchetError(
          'ServerUnavailable',
          `MLflow at ${this.#base} gives a page of ${key} twice, without end.`,
        );
      pages.add(page);
    }
  }

  async #post<Answer = object>(route: string, body: object, shape?: z.ZodType<Answer>): Promise<Answer> {
    const wanted = shape ?? (Answers.nothing as unknown as z.ZodType<Answer>);
    return (await this.#ask(wanted, route, { method: 'POST', body: JSON.stringify(body) }))!;
  }

  /** Null if the server answers with the expected error code. */
  async #ask<Answer>(
    shape: z.ZodType<Answer>,
    route: string,
    request: { readonly method: 'GET' | 'POST'; readonly body?: string },
    expected?: string,
  ): Promise<Answer | null> {
    const url = `${this.#base}/api/2.0/mlflow/${route}`;
    const shown = url.replace(/[?].*/, '');
    let response: Response;
    let text: string;
    const { environment = process.env, variables } = this.#options;
    const { keys, secrets } = credentials(environment);
    const server = { what: 'MLflow ([mlflow] tracking_uri)', url: this.#base, keys, variables, environment };
    try {
      response = await askServer(server, url, {
        ...request,
        headers: { 'content-type': 'application/json', ...asItIs },
        secrets: () => secrets,
        signal: AbortSignal.timeout(answerMsMax),
      });
      text = await readBodyText(response, shown);
    } catch (cause) {
      if (isRefusal(cause)) throw cause;
      const what = `MLflow at ${this.#base} cannot be reached (${causeOf(cause)}). Is it running, and is mlflow.tracking_uri right?`;
      throw new RatchetError('ServerUnavailable', what, { cause });
    }
    const answer = jsonOrNull(text);
    const read = shape.safeParse(answer);
    if (response.ok && read.success) return read.data;
    const { error_code: code, message } = (answer ?? {}) as { error_code?: unknown; message?: unknown };
    if (expected !== undefined && code === expected) return null;
    if (response.status === 401 || response.status === 403) {
      const says = `MLflow at ${this.#base} answers ${response.status}: set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, where the processes start.`;
      throw new RatchetError('ServerUnavailable', says);
    }
    const words = typeof message === 'string' ? message : text;
    const differs = response.ok && answer !== null && read.error ? `; ${unlike(read.error)}` : '';
    const said = `${typeof code === 'string' ? code : ''} ${words}`.trim().slice(0, 300) + differs;
    throw new RatchetError(
      'ServerUnavailable',
      `${shown} answers ${response.status}, expected JSON of MLflow: ${said}`,
    );
  }
}

/** The number of a row in a tag. */
function rowIn(tag: string, base: string): number {
  const row = tag === '' ? Number.NaN : Number(tag);
  if (Number.isSafeInteger(row) && row >= 0) return row;
  throw new RatchetError(
    'ServerUnavailable',
    `MLflow at ${base}: expected the number of a row in the tag ${tagNames.next}, got ${quoted(tag)}. Correct it there, or delete that run: it is sent again.`,
  );
}

interface Credentials {
  readonly keys: readonly string[];
  readonly secrets: Readonly<Record<string, string>>;
}

/** Same rules as MLflow's own client (mlflow/utils/rest_utils.py). */
function credentials(environment: Readonly<NodeJS.ProcessEnv>): Credentials {
  const {
    MLFLOW_TRACKING_TOKEN: token,
    MLFLOW_TRACKING_USERNAME: user,
    MLFLOW_TRACKING_PASSWORD: password,
  } = environment;
  if (user && password) {
    const authorization = `Basic ${Buffer.from(`${user}:${password}`).toString('base64')}`;
    return { keys: ['MLFLOW_TRACKING_USERNAME', 'MLFLOW_TRACKING_PASSWORD'], secrets: { authorization } };
  }
  if (!token) return { keys: [], secrets: {} };
  return { keys: ['MLFLOW_TRACKING_TOKEN'], secrets: { authorization: `Bearer ${token}` } };
}

/** Consecutive rows of one lineage, with a bound on metrics; a row with more is a batch of its own. */
function batchesOf(rows: readonly NumberedRow[]): NumberedRow[][] {
  const batches: NumberedRow[][] = [];
  let metrics = 0;
  for (const row of rows) {
    const own = pointsOf(row).length;
    const last = batches.at(-1);
    if (last?.[0]!.row.lineage === row.row.lineage && metrics + own <= metricsAtOnce) {
      last.push(row);
      metrics += own;
    } else {
      batches.push([row]);
      metrics = own;
    }
  }
  return batches;
}

function pointsOf({ row }: NumberedRow): Point[] {
  const timestamp = timeOf(row);
  return Object.entries(row).flatMap(([name, value]) =>
    typeof value === 'number' && name !== 'step' ? [{ key: mlflowName(name), value, timestamp, step: row.step }] : [],
  );
}

/**
 * MLflow's names have letters, digits and `_ - . / :` and spaces: `eval/words/pass@4` becomes `eval/words/pass_at_4`.
 */
export function mlflowName(name: string): string {
  return name.replaceAll('@', '_at_').replaceAll(/[^\w\-./: ]/g, '_');
}

/** The leaves of the run's spec by path, as text that every version of MLflow accepts. */
function paramsOf(params: object, path = ''): { key: string; value: string }[] {
  return Object.entries(params).flatMap(([name, value]: [string, unknown]) => {
    const key = path === '' ? name : `${path}.${name}`;
    if (value !== null && typeof value === 'object') return paramsOf(value, key);
    return [{ key: mlflowName(key).slice(0, 250), value: String(value).slice(0, paramCharactersMax) }];
  });
}

function slices<T>(list: readonly T[], size: number): T[][] {
  return Array.from({ length: Math.ceil(list.length / size) }, (_, i) => list.slice(i * size, (i + 1) * size));
}
