import { setTimeout as delay } from 'node:timers/promises';
import type { Client } from '@temporalio/client';
import { ScrapedRun, type RunCondition, type Sample, stateSamples } from '../../backends/metrics/exposition.ts';
import { RunSinks, readSinkStates } from '../../runs/metrics/run-sinks.ts';
import { NoticeWatch } from '../../runs/metrics/notice-watch.ts';
import { NotifySpec } from '../../config/run-spec.ts';
import { NoticePost } from './post-notices.ts';
import { StandstillNotices } from './standstill-notices.ts';
import type { MetricsSink } from '../../core/rl/metric-rows.ts';
import { episodesOf, mlflowSink, otlpSink } from './sink-settings.ts';
import { TensorBoardSink } from './tensorboard.ts';
import { specIn } from '../../runs/forms/record-shapes.ts';
import { storeOf } from '../../runs/run-access.ts';
import { layout } from '../../runs/layout.ts';
import type { RunHandle } from '../../core/rl/run-state.ts';
import { openedRun } from '../stack/take-over.ts';
import { askedIn, listWorkflows, memoOf } from '../temporal/list-workflows.ts';
import { WandbSink, wandbFolder, wandbRunId } from './wandb-sink.ts';

/** Interval between looks at a run's metrics, and at Temporal's list of runs. */
const lookMs = { file: 1_000, s3: 10_000, list: 2_000 };
/** Days in which ended runs are looked at once more: the process that fed their sinks may have been killed. */
const endedDays = 7;
const endedMax = 20;
/** Consecutive looks at Temporal without the run, after which it counts as ended. */
const looksMissed = 2;
/** Without a look at Temporal's list for this long, the figures are not those of now. */
const staleMs = 30_000;
/** On shutdown, remaining metrics are sent for at most this long. */
const lastLookMs = 1_200;

interface FollowerOptions {
  /** Returns the client of the current connection. */
  readonly client: () => Client;
  readonly log: (line: string) => void;
  readonly signal: AbortSignal;
}

interface Followed {
  readonly figures: ScrapedRun;
  readonly sinks: RunSinks;
  readonly post: Pick<NoticePost, 'advance' | 'isUpToDate'>;
  /** Consecutive looks without the run: one that continues as new is missing for a moment. */
  missed: number;
  /** Whether the last look at its store failed. */
  isFailing: boolean;
}

/**
 * Follows the metrics of all runs that Temporal knows, and feeds their sinks. It reads stores and Temporal's list of
 * runs; no run waits for it or needs it. One for each Temporal namespace.
 */
export class MetricsFollower {
  readonly #options: FollowerOptions;
  readonly #followed = new Map<string, Followed>();
  /** Last message logged about each run that cannot be followed. */
  readonly #complaints = new Map<string, string>();
  /** Executions that need no further look. */
  readonly #past = new Set<string>();
  #states: ReadonlyMap<string, RunCondition> = new Map();
  readonly #working = new Set<Promise<void>>();
  readonly #standstills: StandstillNotices;
  #lookedAt = Number.NEGATIVE_INFINITY;

  constructor(options: FollowerOptions) {
    this.#options = options;
    this.#standstills = new StandstillNotices(options);
  }

  /** Prometheus samples of running runs, of runs that ended while it watched, and of all runs' states. */
  samples(): Sample[] {
    const followed = [...this.#followed.values()];
    const figures = followed.flatMap(({ figures: own, sinks }) => own.samples(sinks.states));
    const failing = new Map([
      ...followed.map(({ figures: { run }, isFailing }) => [run, isFailing] as const),
      ...[...this.#complaints.keys()].map((run) => [run, true] as const),
    ]);
    const stores = [...failing].map(([run, isFailing]) => ({
      name: 'ratchet_store_failing',
      labels: { run },
      value: isFailing ? 1 : 0,
    }));
    return [...stateSamples(this.#states), ...stores, ...figures];
  }

  /** The reason why its figures are old; null while Temporal answers. */
  get whyNotReady(): string | null {
    return performance.now() - this.#lookedAt < staleMs ? null : 'Temporal did not list its runs within 30 seconds';
  }

  /** Runs until the signal, then sends what remains. */
  async run(): Promise<void> {
    const { signal, log } = this.#options;
    let complaint = '';
    while (!signal.aborted) {
      try {
        await this.#look();
        this.#lookedAt = performance.now();
        complaint = '';
      } catch (error) {
        const reason = error instanceof Error ? error.message : String(error);
        if (reason !== complaint) log(`the list of runs could not be read: ${reason}`);
        complaint = reason;
      }
      await delay(lookMs.list, undefined, { signal }).catch(() => undefined); // shutting down
    }
    await Promise.race([Promise.all(this.#working), delay(lastLookMs)]);
  }

  async #look(): Promise<void> {
    const client = this.#options.client();
    const running = new Set<string>();
    const states = new Map<string, RunCondition>();
    for await (const found of listWorkflows(client, "WorkflowType='trainRun' AND ExecutionStatus='Running'")) {
      const memo = await memoOf(client, found.raw, (why) => this.#cannotFollow(found.workflowId, why));
      if (memo === null) continue;
      const asked = askedIn(memo);
      states.set(found.workflowId, asked?.pausedBecause == null ? 'running' : 'paused');
      const name = await this.#followOrSay(found.workflowId, found.runId, false);
      if (name !== null) running.add(name);
      await this.#standstills.paused(found, asked);
    }
    for (const [name, followed] of this.#followed) followed.missed = running.has(name) ? 0 : followed.missed + 1;
    const since = new Date(Date.now() - endedDays * 24 * 3_600_000).toISOString();
    const query = `WorkflowType='trainRun' AND ExecutionStatus!='Running' AND CloseTime>'${since}'`;
    let count = 0;
    const ended = new Set<string>(); // the newest execution of a run comes first
    for await (const found of listWorkflows(client, query, endedMax)) {
      if (++count > endedMax) break;
      const isNewest = !states.has(found.workflowId) && !ended.has(found.workflowId);
      const hasFailed = isNewest && ['FAILED', 'TIMED_OUT'].includes(found.status.name);
      if (hasFailed) states.set(found.workflowId, 'failed');
      if (hasFailed) await this.#standstills.failed(found);
      ended.add(found.workflowId);
      await this.#followOrSay(found.workflowId, found.runId, true);
    }
    this.#states = states;
  }

  /** A failure for one run does not affect the others. */
  async #followOrSay(workflowId: string, executionId: string, isEnded: boolean): Promise<string | null> {
    try {
      const name = await this.#follow(workflowId, executionId, isEnded);
      this.#complaints.delete(workflowId);
      return name;
    } catch (error) {
      this.#cannotFollow(workflowId, error instanceof Error ? error.message : String(error));
      return null;
    }
  }

  #cannotFollow(workflowId: string, reason: string): void {
    if (this.#complaints.get(workflowId) !== reason) this.#options.log(`${workflowId} cannot be followed: ${reason}`);
    this.#complaints.set(workflowId, reason);
  }

  /** Name under which the run is followed; null when it is not (yet). */
  async #follow(workflowId: string, executionId: string, isEnded: boolean): Promise<string | null> {
    const key = `${workflowId}/${executionId}`;
    if (isEnded && this.#past.has(key)) return null;
    const handle = await openedRun(this.#options.client(), workflowId, executionId);
    if (isEnded) this.#past.add(key);
    if (handle === null) return null;
    const name = `${handle.store}${handle.name}`;
    if (this.#followed.has(name)) return name;
    if (isEnded) {
      const store = storeOf({ store: handle.store, name: handle.name });
      if ((await store.read(handle.spec.key)) === null) return null; // its folder was removed
      const states = Object.values(await readSinkStates(store));
      if (states.length > 0 && states.every(({ isDone }) => isDone)) return null;
    }
    await this.#begin(name, handle);
    return name;
  }

  async #begin(name: string, handle: RunHandle): Promise<void> {
    const log = (line: string): void => this.#options.log(`${handle.name}: ${line}`);
    const store = storeOf(handle);
    const spec = specIn(await store.get(handle.spec), handle.spec.key);
    const firstClaim = Buffer.from((await store.read(layout.run())) ?? []).toString('utf8');
    const id = wandbRunId(handle.name, handle.store, firstClaim);
    const { wandb, mlflow } = spec;
    const otlp = otlpSink(spec, { id, episodesOf: episodesOf(handle, log) });
    const sinks: MetricsSink[] = [
      new NoticeWatch(handle, spec.notify ?? NotifySpec.parse({})),
      new TensorBoardSink(store),
      ...(otlp ? [otlp] : []),
      ...(mlflow ? [mlflowSink(spec, mlflow, id)] : []),
      ...(wandb && wandb.mode !== 'disabled'
        ? [new WandbSink({ spec, wandb, id, folder: wandbFolder(handle.store, handle.name, id), log })]
        : []),
    ];
    const followed: Followed = {
      figures: new ScrapedRun(handle.name),
      sinks: new RunSinks(store, sinks, log),
      post: NoticePost.of(spec, store, { log }),
      missed: 0,
      isFailing: false,
    };
    this.#followed.set(name, followed);
    const work = this.#feed(name, followed, handle.store.startsWith('file:') ? lookMs.file : lookMs.s3, log);
    this.#working.add(work);
    void work.finally(() => this.#working.delete(work));
  }

  /** Feeds the sinks until the run has ended and everything was sent, or until shutdown. */
  async #feed(name: string, followed: Followed, intervalMs: number, log: (line: string) => void): Promise<void> {
    const { figures, sinks, post } = followed;
    const { signal } = this.#options;
    let complaint = '';
    let isRestored = false;
    for (;;) {
      const isEnded = followed.missed >= looksMissed; // read first: later rows are seen at the next look
      const isLast = signal.aborted;
      try {
        if (!isRestored) await sinks.restore();
        isRestored = true;
        for (const { row } of await sinks.advance()) figures.add(row);
        void post.advance();
        complaint = '';
        followed.isFailing = false;
        const isOver = isEnded && sinks.isUpToDate && post.isUpToDate;
        if (isLast || isOver) {
          await sinks.close(isOver);
          if (isOver) this.#followed.delete(name);
          return;
        }
      } catch (error) {
        const reason = error instanceof Error ? error.message : String(error);
        if (reason !== complaint) log(`its metrics could not be followed: ${reason}`);
        complaint = reason;
        followed.isFailing = true;
        if (isLast) return;
      }
      await delay(intervalMs, undefined, { signal }).catch(() => undefined); // shutting down: one more look
    }
  }
}
