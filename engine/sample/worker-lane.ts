import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { RatchetError } from '../../core/errors.ts';
import type { ModelConfig } from '../model/config.ts';
import type { Parameters } from '../model/parameters.ts';
import type { Lane, LaneEvents, LaneOptions, NewRow } from './decode-lane.ts';
import type { FromWorker, Stepped, ToWorker, WorkerSettings } from './lane-protocol.ts';

/** Versions without rows whose weights a worker keeps, so that they need not be copied again at the next call. */
const idleVersionsMax = 2;

/** A lane in a worker thread, with its own copy of the weights: the caller's thread stays free while it decodes. */
export class WorkerLane implements Lane {
  readonly #worker: Worker;
  readonly #events: LaneEvents;
  /** Rows under way of the versions whose weights the worker holds, the latest version last. */
  readonly #versions = new Map<number, Set<number>>();
  readonly #versionOf = new Map<number, number>();
  #death: RatchetError | null = null;

  private constructor(worker: Worker, events: LaneEvents) {
    this.#worker = worker;
    this.#events = events;
    worker.on('message', (message: FromWorker) => {
      if (message.kind === 'stepped') this.#receive(message);
    });
    worker.on('error', (error) => this.#die(error));
    worker.on('exit', (code) => this.#die(new Error(`it exited with code ${code}`)));
  }

  static async open(config: ModelConfig, options: LaneOptions, events: LaneEvents): Promise<WorkerLane> {
    const isSource = import.meta.url.endsWith('.ts');
    const entry = new URL(isSource ? './lane-worker-source.mjs' : './lane-worker.js', import.meta.url);
    const worker = new Worker(entry, { workerData: { config, options } satisfies WorkerSettings });
    // The first message says that it is open; an error before it rejects.
    await once(worker, 'message');
    return new WorkerLane(worker, events);
  }

  submit(version: number, parameters: Parameters, rows: readonly NewRow[]): void {
    if (this.#death) {
      this.#events.fail(
        rows.map(({ id }) => id),
        this.#death,
      );
      return;
    }
    const under = this.#versions.get(version) ?? new Set();
    if (!this.#versions.delete(version)) this.#post({ kind: 'weights', version, flat: parameters.flat.slice() });
    this.#versions.set(version, under);
    for (const { id } of rows) {
      under.add(id);
      this.#versionOf.set(id, version);
    }
    this.#post({ kind: 'submit', version, rows: rows.map(({ id, request }) => ({ id, request: plain(request) })) });
    this.#letGo();
  }

  forget(version: number): void {
    this.#versions.delete(version);
    this.#post({ kind: 'forget', version, prompts: true });
  }

  drop(ids: readonly number[]): void {
    for (const id of ids) this.#ended(id);
    this.#post({ kind: 'drop', ids });
  }

  async close(): Promise<void> {
    if (this.#death) return;
    this.#death = new RatchetError('EngineDied', 'The decoding thread was closed.');
    const exited = once(this.#worker, 'exit');
    this.#post({ kind: 'close' });
    await exited;
  }

  #receive({ ids, tokenIds, logprobs, samplingLogprobs, ends, failures, counters }: Stepped): void {
    ids.forEach((id, i) => {
      if (!this.#versionOf.has(id)) return;
      const choice = { tokenId: tokenIds[i]!, logprob: logprobs[i]!, samplingLogprob: samplingLogprobs[i]! };
      this.#events.token(id, choice);
    });
    for (const failure of failures) {
      this.#events.fail(
        failure.ids.filter((id) => this.#ended(id)),
        failure.error,
      );
    }
    const ended = ends.filter(({ id }) => this.#ended(id));
    this.#letGo();
    this.#events.stepped(ended, counters);
  }

  /** Whether the row was under way until now. */
  #ended(id: number): boolean {
    const version = this.#versionOf.get(id);
    if (version === undefined) return false;
    this.#versionOf.delete(id);
    this.#versions.get(version)?.delete(id);
    return true;
  }

  #letGo(): void {
    const idle = [...this.#versions].filter(([, under]) => under.size === 0);
    for (const [version] of idle.slice(0, Math.max(0, idle.length - idleVersionsMax))) {
      this.#versions.delete(version);
      this.#post({ kind: 'forget', version, prompts: false });
    }
  }

  #die(cause: Error): void {
    if (this.#death) return;
    this.#death = new RatchetError('EngineDied', `A decoding thread ended: ${cause.message}. Open the sampler again.`, {
      cause,
    });
    const ids = [...this.#versionOf.keys()];
    this.#versionOf.clear();
    this.#events.fail(ids, this.#death);
  }

  #post(message: ToWorker): void {
    // oxlint-disable-next-line unicorn/require-post-message-target-origin -- a worker thread, not a window
    this.#worker.postMessage(message);
  }
}

/** Functions do not travel between threads; the sampler calls them. */
function plain({ isFinished, ...request }: NewRow['request'] & { isFinished?: unknown }): NewRow['request'] {
  void isFinished;
  return request;
}
