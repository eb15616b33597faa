import { connect, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { type ErrorCode, RatchetError } from '../../core/errors.ts';
import { present } from '../../core/present.ts';
import { LineReader } from '../environments/verifiers/line-reader.ts';
import { hostOf, type TorchHost } from './host.ts';
import type { NodesPlace } from '../nodes/node-link.ts';
import { type HeldNodes, nodesAt, type TrainerNodes } from '../nodes/nodes.ts';
import {
  type Answer,
  codeNamed,
  type Fatal,
  type GroupOnNodes,
  lineBytesMax,
  type RankOptions,
  type Ready,
  readMessage,
} from './protocol.ts';
import { Rendezvous } from './rendezvous.ts';

/** Ranks that are told to stop finish what they compute; a step may take minutes, and nobody waits for that. */
const closeGraceMs = 8_000;

interface Pending {
  readonly resolve: (result: unknown) => void;
  readonly reject: (error: Error) => void;
}

/** After a rank that lost another: what happened on that one's node may be on its way. */
const echoMs = 2_000;
/** A second beyond the time in which ranks give each other up: their own words say more. */
const beyondMs = 10_000;
const defaultTimeoutS = 600;
/** Loading and writing models of real size take longer than a micro-batch, and say nothing meanwhile. */
const longer = new Set(['open', 'export', 'save_optimizer', 'restore_optimizer', 'digest']);
const longerBy = 6;
const lookMs = 500;

/** A group of ranks, and the socket to the first of them. When it dies every call fails with what it died of; nothing restarts by itself. */
export class TorchGroup {
  readonly #host: TorchHost;
  readonly #options: RankOptions;
  readonly #nodes: { readonly count: number; readonly place: NodesPlace } | null;
  readonly #ended = new AbortController();
  #joined: TrainerNodes | null = null;
  #held: (HeldNodes & { readonly here: GroupOnNodes; readonly rendezvous: Rendezvous }) | null = null;
  #pids: readonly number[] = [];
  #heardAt = 0;
  #isEchoing = false;
  readonly #pending = new Map<number, Pending>();
  #wire: Socket | null = null;
  #ready: Promise<Ready> | null = null;
  #tellReady: (ready: Ready) => void = () => undefined;
  #failReady: (error: Error) => void = () => undefined;
  #nextId = 1;
  #death: RatchetError | null = null;

  /** `nodes`: so many, this one included, the others of which join it there. */
  constructor(
    python: string,
    options: RankOptions,
    nodes: { readonly count: number; readonly place: NodesPlace } | null = null,
  ) {
    this.#host = hostOf(python);
    this.#options = options;
    this.#nodes = nodes;
    void this.#host.ended.then((error) => this.#die(error.message, error.code));
  }

  get isAlive(): boolean {
    return this.#death === null;
  }

  /** Nodes that have to join before it can start, for people; null = none. */
  waitsFor(): string | null {
    if (this.#nodes === null || this.#held !== null || this.#death !== null) return null;
    return this.#joined?.missing({ kind: 'torch', count: this.#nodes.count - 1 }) ?? null;
  }

  /** Starts the ranks where that has not happened yet. Gives their fingerprint and processes. */
  ready(): Promise<Ready> {
    return (this.#ready ??= this.#start());
  }

  /** One operation of python/ratchet_torch/server.py. */
  async call(op: string, args: object = {}): Promise<unknown> {
    await this.ready();
    if (this.#death) throw this.#death;
    const id = this.#nextId++;
    const watch = this.#watch(op);
    try {
      return await new Promise((resolve, reject) => {
        this.#pending.set(id, { resolve, reject });
        this.#wire!.write(`${JSON.stringify({ id, op, args })}\n`);
      });
    } finally {
      clearInterval(watch);
    }
  }

  /** Resolves when its ranks have ended. */
  async close(): Promise<void> {
    this.#die('The PyTorch trainer was closed.');
    const wire = this.#wire;
    if (!wire || wire.closed) return;
    const closed = new Promise((resolve) => wire.once('close', resolve));
    const stop = new AbortController();
    await Promise.race([closed, delay(closeGraceMs, null, { signal: stop.signal }).catch(() => null)]);
    stop.abort();
    wire.destroy(); // its launcher hears that, and ends the ranks
  }

  async #start(): Promise<Ready> {
    if (this.#nodes !== null) await this.#hold(this.#nodes);
    const socketPath = await this.#host.listening();
    if (this.#death) throw this.#death;
    const ready = new Promise<Ready>((resolve, reject) => {
      this.#tellReady = resolve;
      this.#failReady = reject;
    });
    const wire = connect(socketPath);
    this.#wire = wire;
    const lines = new LineReader(lineBytesMax, (line) => this.#hear(line));
    wire.on('data', (chunk: Buffer) => this.#read(lines, chunk));
    wire.on('error', () => undefined); // its end is heard below
    wire.on('close', () => {
      if (!this.#isEchoing) this.#die(`The PyTorch trainer has ended.${this.#host.tail()}`);
    });
    const options = this.#held ? { ...this.#options, nodes: this.#held.here } : this.#options;
    wire.write(`${JSON.stringify(options)}\n`);
    this.#held?.start((index) => {
      const nodes = { index, first: index * this.#options.ranks, world: this.#held!.here.world };
      return { ...this.#options, nodes };
    });
    const watch = this.#watch('start');
    return ready.finally(() => clearInterval(watch));
  }

  async #hold({ count, place }: { readonly count: number; readonly place: NodesPlace }): Promise<void> {
    this.#joined = await nodesAt(place);
    const { signal } = this.#ended;
    signal.throwIfAborted();
    const rendezvous = new Rendezvous();
    const held = await this.#joined.hold({
      kind: 'torch',
      count: count - 1,
      signal,
      onEnd: ({ code, message }) => this.#die(message, codeNamed(code)),
      serve: (stream) => rendezvous.serve(stream),
    });
    const store = await rendezvous.listen();
    const world = this.#options.ranks * count;
    const here = { index: 0, first: 0, world, store, ...present({ interface: held.interface }) };
    this.#held = { ...held, here, rendezvous };
  }

  /** Ends the group when nothing was heard of it for too long while it works: a rank is stuck, or stopped. */
  #watch(op: string): NodeJS.Timeout {
    const limitMs = (this.#options.timeout_s ?? defaultTimeoutS) * 1000 * (longer.has(op) ? longerBy : 1) + beyondMs;
    this.#heardAt = performance.now();
    return setInterval(() => {
      if (performance.now() - this.#heardAt <= limitMs) return;
      this.#die(
        `The ranks of the PyTorch trainer gave no sign for ${Math.round(limitMs / 1000)} s (${op}). They were ended.`,
      );
      this.#kill();
      if (op === 'start') this.#host.kill(); // it may be what is stuck
    }, lookMs).unref();
  }

  #read(lines: LineReader, chunk: Buffer): void {
    try {
      lines.add(chunk);
    } catch (error) {
      this.#die(`The PyTorch trainer said what is not in the protocol: ${(error as Error).message.slice(0, 300)}`);
      this.#wire?.destroy();
    }
  }

  #hear(line: string): void {
    const message = readMessage(line);
    this.#heardAt = performance.now();
    if (!('event' in message)) this.#settle(message);
    else if (message.event === 'ready') this.#beReady(message as Ready);
    else if (message.event === 'fatal') this.#hearFatal(message as Fatal);
  }

  #beReady(ready: Ready): void {
    this.#pids = ready.pids.slice(0, this.#options.ranks); // the others are of other nodes
    this.#tellReady(ready);
  }

  #hearFatal({ message, code, is_echo: isEcho = false }: Fatal): void {
    const sentence = /[.!?]\s*$/.test(message) ? message : `${message}.`; // a rank's last words are those of Python
    if (!isEcho || this.#held === null) return this.#die(sentence, codeNamed(code));
    this.#isEchoing = true;
    setTimeout(() => this.#die(sentence, codeNamed(code)), echoMs);
  }

  #settle({ id, result, error }: Answer): void {
    const pending = this.#pending.get(id);
    this.#pending.delete(id);
    if (error) pending?.reject(new RatchetError(codeNamed(error.code), error.message));
    else pending?.resolve(result ?? null);
  }

  /** The first cause stays. The end of the wire is the order to stop. */
  #die(message: string, code: ErrorCode = 'EngineDied'): void {
    if (this.#death) return;
    this.#death = new RatchetError(code, message);
    this.#ended.abort(this.#death);
    this.#failReady(this.#death);
    for (const { reject } of this.#pending.values()) reject(this.#death);
    this.#pending.clear();
    void this.#held?.release();
    this.#held?.rendezvous.close();
    this.#wire?.end();
  }

  #kill(): void {
    for (const pid of this.#pids) {
      try {
        process.kill(pid, 'SIGKILL');
      } catch {
        // it has ended
      }
    }
  }
}
