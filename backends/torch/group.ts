import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { type ErrorCode, RatchetError } from '../../core/errors.ts';
import { LineReader } from '../environments/verifiers/line-reader.ts';
import { hostOf, type TorchHost } from './host.ts';
import {
  type Answer,
  codeNamed,
  type Fatal,
  lineBytesMax,
  type RankOptions,
  type Ready,
  readMessage,
} from './protocol.ts';

/** Ranks that are told to stop finish what they compute; a step may take minutes, and nobody waits for that. */
const closeGraceMs = 8_000;

interface Pending {
  readonly resolve: (result: unknown) => void;
  readonly reject: (error: Error) => void;
}

/** A group of ranks, and the socket to the first of them. When it dies every call fails with what it died of; nothing restarts by itself. */
export class TorchGroup {
  readonly #host: TorchHost;
  readonly #options: RankOptions;
  readonly #pending = new Map<number, Pending>();
  #wire: Socket | null = null;
  #ready: Promise<Ready> | null = null;
  #tellReady: (ready: Ready) => void = () => undefined;
  #failReady: (error: Error) => void = () => undefined;
  #nextId = 1;
  #death: RatchetError | null = null;

  constructor(python: string, options: RankOptions) {
    this.#host = hostOf(python);
    this.#options = options;
    void this.#host.ended.then((error) => this.#die(error.message, error.code));
  }

  get isAlive(): boolean {
    return this.#death === null;
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
    return new Promise((resolve, reject) => {
      this.#pending.set(id, { resolve, reject });
      this.#wire!.write(`${JSON.stringify({ id, op, args })}\n`);
    });
  }

  /** The end of the wire is the order to stop. */
  async close(): Promise<void> {
    this.#die('The PyTorch trainer was closed.');
    const wire = this.#wire;
    if (!wire || wire.destroyed) return;
    const closed = once(wire, 'close');
    wire.end();
    const stop = new AbortController();
    await Promise.race([closed, delay(closeGraceMs, null, { signal: stop.signal }).catch(() => null)]);
    stop.abort();
    wire.destroy(); // its launcher hears that, and ends the ranks
  }

  async #start(): Promise<Ready> {
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
    wire.on('close', () => this.#die(`The PyTorch trainer has ended.${this.#host.tail()}`));
    wire.write(`${JSON.stringify(this.#options)}\n`);
    return ready;
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
    if (!('event' in message)) this.#settle(message);
    else if (message.event === 'ready') this.#tellReady(message as Ready);
    else if (message.event === 'fatal') this.#die((message as Fatal).message, codeNamed((message as Fatal).code));
  }

  #settle({ id, result, error }: Answer): void {
    const pending = this.#pending.get(id);
    this.#pending.delete(id);
    if (error) pending?.reject(new RatchetError(codeNamed(error.code), error.message));
    else pending?.resolve(result ?? null);
  }

  /** The first cause stays. */
  #die(message: string, code: ErrorCode = 'EngineDied'): void {
    this.#death ??= new RatchetError(code, message);
    this.#failReady(this.#death);
    for (const { reject } of this.#pending.values()) reject(this.#death);
    this.#pending.clear();
  }
}
