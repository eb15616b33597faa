import { stringifyExact } from '../../../core/exact-json.ts';
import { type ChildProcess, spawn } from 'node:child_process';
import { closeSync, copyFileSync, fstatSync, mkdirSync, openSync, readSync, truncateSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { RatchetError } from '../../../core/errors.ts';
import { present } from '../../../core/present.ts';
import { watchChild } from '../../../host/child-progress.ts';
import type { JsonValue } from '../../../config/run-spec.ts';
import { LineReader } from './line-reader.ts';
import {
  protocolVersion,
  readLine,
  type Event,
  type Ready,
  type ChildReply,
  type SampledTurn,
  type TurnRequest,
  type WireNote,
  type WireNoted,
  type WireError,
} from './protocol.ts';
import { readSpilled } from './spill.ts';

/** A running event loop reports every second. */
const silentTicksMax = 30;
const tickMs = 1_000;
/** Time for a child to confirm a cancellation or a passed deadline. */
const cancelGraceMs = 10_000;
const closeGraceMs = 8_000;
/** Time for reading a child's last output; its descendants may keep the pipe open for ever. */
const lastWordsMs = 1_000;
const logBytesMax = 8 * 1024 * 1024;
const logTailChars = 1_500;
/**
 * Results above a megabyte come as files; a request for a turn may contain pictures, and a group to score megabytes of
 * state each.
 */
const lineBytesMax = 256 * 1024 * 1024;

interface ChildOptions {
  readonly python: string;
  /** All that it sees of our environment. */
  readonly environment: Readonly<Record<string, string>>;
  readonly folder: string;
  /** Folder of results that are too large for a line, until they are read. */
  readonly spillFolder: string;
  /** Log of its stderr and of environments' prints. Bounded: the previous part is beside it, as `.1`. */
  readonly logFile: string;
  /** Silent ticks of a second after which it counts as hanging. */
  readonly silentTicks?: number;
}

export interface CallOptions {
  readonly signal?: AbortSignal | undefined;
  readonly deadlineS?: number | undefined;
  readonly onSample?: (wanted: TurnRequest) => Promise<SampledTurn>;
  readonly onNote?: ((told: WireNote) => Promise<WireNoted>) | undefined;
}

interface Call {
  readonly op: string;
  readonly onSample: CallOptions['onSample'];
  readonly onNote: CallOptions['onNote'];
  readonly samples: Map<number, AbortController>;
  readonly settle: (outcome: { readonly reply: ChildReply } | { readonly error: unknown }) => void;
}

/** One Python process that runs environments. It does not restart by itself: when it ends, every call fails. */
export class PythonChild {
  /** Resolves with the reason when it has ended. */
  readonly ended: Promise<RatchetError>;
  readonly #options: ChildOptions;
  readonly #process: ChildProcess;
  readonly #calls = new Map<number, Call>();
  readonly #ready: Promise<Ready>;
  #tellReady: (ready: Ready) => void = () => {};
  #end: (error: RatchetError) => void = () => {};
  #endedWith: RatchetError | null = null;
  #why = '';
  #nextId = 1;
  #unsent: string[] = [];
  #silentTicks = 0;
  #loading = 0;

  constructor(options: ChildOptions) {
    this.#options = options;
    this.ended = new Promise((resolve) => (this.#end = resolve));
    this.#ready = new Promise((resolve) => (this.#tellReady = resolve));
    mkdirSync(path.dirname(options.logFile), { recursive: true });
    mkdirSync(options.spillFolder, { recursive: true, mode: 0o700 });
    const log = openSync(options.logFile, 'a', 0o600);
    // A process group of its own, so that programs started by environments end with it.
    const args = ['--spill', options.spillFolder, '--line-max', String(lineBytesMax)];
    this.#process = spawn(options.python, ['-P', '-m', 'ratchet_bridge', ...args], {
      cwd: options.folder,
      env: options.environment,
      stdio: ['pipe', 'pipe', log],
      detached: true,
    });
    closeSync(log);
    this.#process.stdin!.on('error', () => {}); // its end is handled below
    const lines = new LineReader(lineBytesMax, (line) => this.#hear(line));
    this.#process.stdout!.on('data', (chunk: Buffer) => this.#read(lines, chunk));
    this.#process.on('error', (error) => this.#onEnd(error.message));
    this.#process.on('close', (code, signal) => this.#onEnd(howItEnded(code, signal)));
    this.#process.on('exit', (code, signal) => this.#onExit(howItEnded(code, signal)));
    const ticker = setInterval(() => this.#tick(), tickMs);
    void this.ended.then(() => clearInterval(ticker));
  }

  get pid(): number | undefined {
    return this.#process.pid;
  }

  /** Number of requests in progress. */
  get busy(): number {
    return this.#calls.size;
  }

  get isAlive(): boolean {
    return this.#endedWith === null && this.#why === '';
  }

  /** Versions and abilities, once it has started. Throws `EnvironmentUnavailable` if it ended before. */
  async ready(): Promise<Ready> {
    // Importing verifiers takes seconds, or minutes from a cold disk on a busy machine.
    const watch = watchChild(this.pid);
    try {
      const ready = await Promise.race([this.#ready, this.ended, watch.over]);
      if (ready instanceof RatchetError) throw ready;
      if (typeof ready === 'string') throw await this.kill(`it was not ready: ${ready}`);
      if (ready.protocol === protocolVersion) return ready;
      throw await this.kill(`it speaks protocol ${ready.protocol}, not ${protocolVersion}`);
    } finally {
      watch.end();
    }
  }

  /**
   * Requests one operation. Rejects with the signal's reason once the child has stopped working on it, with
   * `EnvironmentUnavailable` when the child ends or the deadline passes, and with `ChildRefused` for a refusal by the
   * child.
   */
  async call(op: string, args: object, options: CallOptions = {}): Promise<JsonValue> {
    const { signal, deadlineS, onSample, onNote } = options;
    signal?.throwIfAborted();
    if (this.#endedWith) throw this.#endedWith;
    const id = this.#nextId++;
    const line = stringifyExact({ id, op, ...args, ...present({ deadline_s: deadlineS }) });
    if (line.length * 3 > lineBytesMax && Buffer.byteLength(line) > lineBytesMax) {
      throw new RatchetError(
        'EnvironmentBroken',
        `${op} needs a line of ${line.length} characters; at most ${lineBytesMax} bytes go to Python at once.`,
      );
    }
    const stopped = new AbortController();
    const isLoad = op === 'load';
    if (isLoad) this.#loading += 1;
    try {
      const reply = await new Promise<ChildReply>((resolve, reject) => {
        const settle: Call['settle'] = (outcome) =>
          'reply' in outcome ? resolve(outcome.reply) : reject(outcome.error);
        const call: Call = { op, onSample, onNote, samples: new Map(), settle };
        this.#calls.set(id, call);
        this.#stopInTime(id, call, { signal, deadlineS, stopped: stopped.signal, isLoad });
        this.#write(line);
      });
      if (reply.ok)
        return reply.spilled === undefined
          ? (reply.result ?? null)
          : await readSpilled(reply.spilled, this.#options.spillFolder);
      if (signal?.aborted) throw signal.reason;
      throw new ChildRefused(op, reply.error ?? { type: 'Unknown', message: '', retryable: false, traceback: '' });
    } finally {
      stopped.abort();
      if (isLoad) this.#loading -= 1;
      const call = this.#calls.get(id);
      this.#calls.delete(id);
      for (const sample of call?.samples.values() ?? []) sample.abort(new Error('the rollout is over'));
    }
  }

  /** Lets environments close their resources, then ends it. */
  async close(): Promise<void> {
    this.#why ||= 'it was closed';
    this.#process.stdin?.end();
    const closed = new AbortController();
    const grace = delay(closeGraceMs, null, { signal: closed.signal }).catch(() => null);
    await Promise.race([this.ended, grace]);
    closed.abort();
    await this.kill('it was closed');
  }

  /** Kills it at once, with all its descendants. */
  async kill(why: string): Promise<RatchetError> {
    this.#why ||= why;
    this.#killGroup();
    return this.ended;
  }

  /**
   * Cancels a call whose signal is aborted or whose deadline has passed, and gives up on a child that does not react.
   */
  #stopInTime(
    id: number,
    call: Call,
    {
      signal,
      deadlineS,
      stopped,
      isLoad,
    }: { signal: AbortSignal | undefined; deadlineS: number | undefined; stopped: AbortSignal; isLoad: boolean },
  ): void {
    const giveUp = (error: unknown): void => {
      if (isLoad) void this.kill('loading the environment was cancelled'); // its event loop is blocked meanwhile
      else this.#send({ id: this.#nextId++, op: 'cancel', target: id });
      const timer = setTimeout(() => call.settle({ error }), isLoad ? 0 : cancelGraceMs);
      stopped.addEventListener('abort', () => clearTimeout(timer));
    };
    const onAbort = (): void => giveUp(signal?.reason);
    signal?.addEventListener('abort', onAbort, { once: true });
    stopped.addEventListener('abort', () => signal?.removeEventListener('abort', onAbort));
    if (deadlineS === undefined) return;
    // The child enforces the deadline itself; this covers one that cannot.
    const grace = isLoad ? 0 : cancelGraceMs;
    const timer = setTimeout(
      () => giveUp(new TooLate('EnvironmentUnavailable', `${call.op} was not done after ${deadlineS} s`)),
      deadlineS * 1000 + grace,
    );
    stopped.addEventListener('abort', () => clearTimeout(timer));
  }

  #read(lines: LineReader, chunk: Buffer): void {
    this.#silentTicks = 0;
    try {
      lines.add(chunk);
    } catch (error) {
      void this.kill(`it said what is not in the protocol: ${(error as Error).message.slice(0, 300)}`);
    }
  }

  #hear(line: string): void {
    const said = readLine(line);
    if ('event' in said) this.#onEvent(said);
    else if (said.id !== null) this.#calls.get(said.id)?.settle({ reply: said });
  }

  #onEvent(event: Event): void {
    if (event.event === 'ready') this.#tellReady(event);
    else if (event.event === 'unwanted') {
      this.#calls
        .get(event.request)
        ?.samples.get(event.sample)
        ?.abort(new Error('the environment no longer waits for it'));
    } else if (event.event === 'sample') void this.#sample(event);
    else if (event.event === 'note') void this.#note(event);
  }

  /** Never rejects: the child receives the failure. */
  async #sample({
    sample,
    request,
    messages,
    tools,
    sampling,
    trace,
  }: Extract<Event, { event: 'sample' }>): Promise<void> {
    const call = this.#calls.get(request);
    const onSample = call?.onSample;
    if (!call || !onSample) {
      this.#send({ sample, ok: false, error: { type: 'cancelled', message: 'nobody plays this rollout any more' } });
      return;
    }
    const unwanted = new AbortController();
    call.samples.set(sample, unwanted);
    try {
      const turn = await onSample({ messages, tools, sampling, ...present({ trace }), signal: unwanted.signal });
      this.#send({ sample, ok: true, turn });
    } catch (error) {
      this.#send({ sample, ok: false, error: { type: kindOf(error), message: messageOf(error) } });
    } finally {
      call.samples.delete(sample);
    }
  }

  /** Never rejects, as `#sample`. A rollout without notes makes its calls. */
  async #note({ note, request, begin, settle, state }: Extract<Event, { event: 'note' }>): Promise<void> {
    const call = this.#calls.get(request);
    try {
      if (!call) throw new Error('nobody plays this rollout any more');
      const told = call.onNote ? await call.onNote(present({ begin, settle, state })) : null;
      this.#send({ note, ok: true, told });
    } catch (error) {
      this.#send({ note, ok: false, error: { message: messageOf(error) } });
    }
  }

  #send(message: object): void {
    this.#write(stringifyExact(message));
  }

  #write(line: string): void {
    if (this.#unsent.length === 0) setImmediate(() => this.#flush());
    this.#unsent.push(line);
  }

  /** Writes all lines of one turn of the event loop at once. */
  #flush(): void {
    const lines = this.#unsent;
    this.#unsent = [];
    const stdin = this.#process.stdin;
    if (stdin?.writable) stdin.write(`${lines.join('\n')}\n`);
  }

  /** A late tick is no silent child: only ticks during which our own loop ran and nothing arrived are counted. */
  #tick(): void {
    boundLog(this.#options.logFile);
    if (this.#loading > 0) this.#silentTicks = 0; // bounded by the load's deadline
    this.#silentTicks += 1;
    const { silentTicks = silentTicksMax } = this.#options;
    if (this.#silentTicks > silentTicks) void this.kill(`its event loop has hung for ${silentTicks} s`);
  }

  #onExit(how: string): void {
    this.#killGroup(); // its descendants, unless they left the group
    const timer = setTimeout(() => this.#onEnd(how), lastWordsMs);
    void this.ended.then(() => clearTimeout(timer));
  }

  #onEnd(how: string): void {
    if (this.#endedWith) return;
    this.#killGroup(); // its descendants
    const { logFile } = this.#options;
    const tail = tailOf(logFile);
    const atWork = [...this.#calls.values()].map(({ op }) => op);
    const counted =
      atWork.length === 0 ? '' : ` while it worked on ${atWork.length} request(s) (${[...new Set(atWork)].join(', ')})`;
    const ended = this.#why === '' ? `ended by itself (${how})` : `was ended, because ${this.#why}`;
    const error = new ChildEnded(
      `The Python process of the verifiers environments ${ended}${counted}. Its log is ${logFile}${tail === '' ? '' : `, and ends with:\n${tail}`}`,
      atWork.length,
    );
    this.#endedWith = error;
    this.#process.stdout?.destroy();
    for (const call of this.#calls.values()) call.settle({ error });
    this.#end(error);
  }

  #killGroup(): void {
    const { pid } = this.#process;
    if (pid === undefined) return;
    try {
      process.kill(-pid, 'SIGKILL');
    } catch {
      this.#process.kill('SIGKILL'); // it left its group, or is gone
    }
  }
}

function howItEnded(code: number | null, signal: NodeJS.Signals | null): string {
  return signal ? `signal ${signal}` : `exit status ${code}`;
}

/** A child missed a deadline silently. */
export class TooLate extends RatchetError {}

/** The child refused a request; `error` is its answer. */
export class ChildRefused extends Error {
  readonly error: WireError;

  constructor(op: string, error: WireError) {
    super([`${op}: ${error.type}: ${error.message}`, error.fix].filter(Boolean).join('\n'));
    this.name = 'ChildRefused';
    this.error = error;
  }
}

/** The process is gone, with all its work. */
export class ChildEnded extends RatchetError {
  readonly atWork: number;

  constructor(message: string, atWork: number) {
    super('EnvironmentUnavailable', message);
    this.atWork = atWork;
  }
}

export function unavailable(message: string): RatchetError {
  return new RatchetError('EnvironmentUnavailable', message);
}

/** The child's handling of a missing turn: an environment continues after an overlong prompt, as in verifiers. */
function kindOf(error: unknown): 'overlong_prompt' | 'cancelled' | 'unavailable' | 'rejected' {
  if (error instanceof Error && error.name === 'AbortError') return 'cancelled';
  if (!(error instanceof RatchetError)) return 'unavailable';
  if (error.code === 'PromptTooLong') return 'overlong_prompt';
  return error.isRetryable ? 'unavailable' : 'rejected';
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** The child keeps writing to this file: its beginning moves aside. */
function boundLog(file: string): void {
  try {
    const descriptor = openSync(file, 'r');
    const { size } = fstatSync(descriptor);
    closeSync(descriptor);
    if (size <= logBytesMax) return;
    copyFileSync(file, `${file}.1`);
    truncateSync(file, 0);
  } catch {
    // The file was removed; the child's output is lost.
  }
}

function tailOf(file: string): string {
  try {
    const descriptor = openSync(file, 'r');
    const { size } = fstatSync(descriptor);
    const bytes = Buffer.alloc(Math.min(size, 4 * logTailChars));
    readSync(descriptor, bytes, 0, bytes.length, size - bytes.length);
    closeSync(descriptor);
    return bytes.toString('utf8').slice(-logTailChars).trim();
  } catch {
    return '';
  }
}
