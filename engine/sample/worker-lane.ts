import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { RatchetError } from '../../core/errors.ts';
import type { ModelConfig } from '../model/config.ts';
import type { Parameters } from '../model/parameters.ts';
import type { Feeds } from '../onnx/runtime.ts';
import type { DecodeSessions } from './decode-batch.ts';
import type { Lane, LaneEvents, LaneOptions, LaneProgram, NewRow } from './decode-lane.ts';
import type {
  FromWorker,
  LaneFailure,
  SharedTensors,
  SharedVersion,
  Stepped,
  ToWorker,
  WorkerSettings,
} from './lane-protocol.ts';

/** A version that the worker computes with. Its memory is held here, since the worker only has addresses. */
interface Held {
  readonly sessions: Promise<DecodeSessions>;
  /** Submissions that wait for the sessions. */
  pending: number;
  lastSubmit: number;
  readonly parameters: Parameters;
}

/**
 * A lane in a worker thread: it decodes on this thread's sessions and weights and reports the sampled tokens step by
 * step.
 */
export class WorkerLane implements Lane {
  readonly #worker: Worker;
  readonly #program: LaneProgram<Parameters>;
  readonly #events: LaneEvents;
  readonly #versions = new Map<number, Held>();
  readonly #rows = new Set<number>();
  #submits = 0;
  #death: RatchetError | null = null;

  private constructor(worker: Worker, program: LaneProgram<Parameters>, events: LaneEvents) {
    this.#worker = worker;
    this.#program = program;
    this.#events = events;
    worker.on('message', (message: FromWorker) => {
      if (message.kind === 'stepped') this.#receive(message);
    });
    worker.on('error', (error) => this.#die(error));
    worker.on('exit', (code) => this.#die(new Error(`it exited with code ${code}`)));
    worker.unref();
  }

  static async open(
    config: ModelConfig,
    program: LaneProgram<Parameters>,
    options: LaneOptions,
    events: LaneEvents,
  ): Promise<WorkerLane> {
    const isSource = import.meta.url.endsWith('.ts');
    const entry = new URL(isSource ? './lane-worker-source.mjs' : './lane-worker.js', import.meta.url);
    // Other options of this process (a debugger, a profiler, a loader) must not pass to the worker.
    const worker = new Worker(entry, { workerData: { config, options } satisfies WorkerSettings, execArgv: [] });
    // The first message says that it is open; an error before it rejects.
    await once(worker, 'message');
    return new WorkerLane(worker, program, events);
  }

  submit(key: number, parameters: Parameters, rows: readonly NewRow[]): void {
    if (this.#death) return this.#events.fail(idsOf(rows), this.#death);
    this.#worker.ref(); // rows in progress keep the process alive
    for (const { id } of rows) this.#rows.add(id);
    const held = this.#versions.get(key) ?? {
      sessions: this.#program.use(key, parameters),
      parameters,
      pending: 0,
      lastSubmit: 0,
    };
    this.#versions.set(key, held);
    void this.#send(key, held, rows);
  }

  forget(version: number): void {
    this.#post({ kind: 'forget', version });
  }

  drop(ids: readonly number[]): void {
    for (const id of ids) this.#rows.delete(id);
    this.#post({ kind: 'drop', ids });
  }

  async close(): Promise<void> {
    if (this.#death) return;
    this.#death = new RatchetError('EngineDied', 'The decoding thread was closed.');
    this.#worker.ref();
    const exited = once(this.#worker, 'exit');
    this.#post({ kind: 'close' });
    await exited;
    this.#letGo([...this.#versions.keys()]);
  }

  async #send(key: number, held: Held, rows: readonly NewRow[]): Promise<void> {
    held.pending++;
    try {
      const shared = share(await held.sessions);
      held.pending--;
      if (this.#death) return;
      held.lastSubmit = ++this.#submits;
      this.#post({
        kind: 'submit',
        version: key,
        shared,
        rows: rows.filter(({ id }) => this.#rows.has(id)).map(plain),
      });
    } catch (error) {
      held.pending--;
      if (this.#versions.get(key) === held) this.#versions.delete(key); // the next request tries again
      this.#events.fail(this.#ended(idsOf(rows)), error);
    }
  }

  #receive({ tokens, ends, failures, counters, submits, versions }: Stepped): void {
    for (let i = 0; i < tokens.length; i += 4) {
      const id = tokens[i]!;
      if (!this.#rows.has(id)) continue;
      this.#events.token(id, { tokenId: tokens[i + 1]!, logprob: tokens[i + 2]!, samplingLogprob: tokens[i + 3]! });
    }
    for (const failure of failures) this.#events.fail(this.#ended(failure.ids), failureOf(failure));
    const known = ends.filter(({ id }) => this.#rows.delete(id));
    const isLeft = ([key, held]: [number, Held]): boolean =>
      held.pending === 0 && held.lastSubmit <= submits && !versions.includes(key);
    this.#letGo([...this.#versions].filter(isLeft).map(([key]) => key));
    if (this.#versions.size === 0 && !this.#death) this.#worker.unref();
    this.#events.stepped(known, counters);
  }

  #letGo(keys: readonly number[]): void {
    for (const key of keys) {
      this.#versions.delete(key);
      this.#program.done(key);
    }
  }

  /** Removes ended rows; returns those that were in progress. */
  #ended(ids: readonly number[]): number[] {
    return ids.filter((id) => this.#rows.delete(id));
  }

  #die(cause: Error): void {
    if (this.#death) return;
    const message = `A decoding thread ended: ${cause.message}. Open the sampler again.`;
    this.#death = new RatchetError('EngineDied', message, { cause });
    this.#letGo([...this.#versions.keys()]);
    this.#events.fail(this.#ended([...this.#rows]), this.#death);
  }

  #post(message: ToWorker): void {
    // oxlint-disable-next-line unicorn/require-post-message-target-origin -- a worker thread, not a window
    this.#worker.postMessage(message);
  }
}

function share({ weights, prefill, step, rows, logits }: DecodeSessions): SharedVersion {
  return {
    weights: { prefill: pointersOf(weights.prefill), step: pointersOf(weights.step) },
    prefill: prefill.share(),
    step: step.share(),
    rows,
    logits,
  };
}

function pointersOf(tensors: Feeds): SharedTensors {
  return Object.fromEntries(Object.entries(tensors).map(([name, { value }]) => [name, value]));
}

/** Functions do not travel between threads; the sampler calls them. */
function plain({ id, request }: NewRow): NewRow {
  const { isFinished, ...rest } = request as NewRow['request'] & { isFinished?: unknown };
  void isFinished;
  return { id, request: rest };
}

function failureOf({ code, message }: LaneFailure): Error {
  return code === null ? new Error(message) : new RatchetError(code, message);
}

function idsOf(rows: readonly NewRow[]): number[] {
  return rows.map(({ id }) => id);
}
