/** What `bench agents` has outside of Ratchet: a model that may die, a counter of what programs heard and did, and an account of sandboxes. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { fileURLToPath } from 'node:url';
import { choosePort } from '../workers/stack/ports.ts';
import { median } from './statistics.ts';

const modelServer = fileURLToPath(new URL('agents-model-server.mjs', import.meta.url));

/** A line of the model's log, written before the answer was given. */
export interface SampledCall {
  /** The rollout. */
  readonly session: string;
  /** Names of token sequences: the prompt, the prompt up to the end of the last answer in it, the prompt with this answer. */
  readonly prompt: string;
  readonly after: string;
  readonly whole: string;
  /** Prompt and answer. */
  readonly tokens: number;
  /** Milliseconds. */
  readonly at: number;
}

/** Always at the same address. */
export class ModelProcess {
  readonly #port: number;
  readonly #log: string;
  readonly #answerMs: number;
  #child: ChildProcess | null = null;

  private constructor(port: number, log: string, answerMs: number) {
    this.#port = port;
    this.#log = log;
    this.#answerMs = answerMs;
  }

  static async open(log: string, answerMs: number): Promise<ModelProcess> {
    const model = new ModelProcess(await choosePort(0), log, answerMs);
    await model.#start();
    return model;
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}/`;
  }

  async #start(): Promise<void> {
    this.#child = fork(modelServer, [String(this.#port), this.#log, String(this.#answerMs)], { execArgv: [] });
    await once(this.#child, 'message');
  }

  async kill(): Promise<void> {
    await this.stop();
    await this.#start();
  }

  async stop(): Promise<void> {
    const child = this.#child;
    if (child === null || child.exitCode !== null || child.signalCode !== null) return;
    const ended = once(child, 'exit');
    child.kill('SIGKILL');
    await ended;
  }
}

export function readCalls(log: string): SampledCall[] {
  const lines = readFileSync(log, 'utf8').split('\n');
  return lines.filter((line) => line !== '').map((line) => JSON.parse(line) as SampledCall);
}

/** Tokens that the model had to do for the calls of a run. */
export function tokensOf(calls: readonly SampledCall[], run: string): number {
  return calls.reduce((sum, { session, tokens }) => sum + (session.startsWith(`/${run}/`) ? tokens : 0), 0);
}

/** Median seconds from one answer of a rollout to its next. */
export function turnSecondsOf(calls: readonly SampledCall[]): number {
  const before = new Map<string, number>();
  const turns: number[] = [];
  for (const { session, at } of calls) {
    const from = before.get(session);
    if (from !== undefined) turns.push((at - from) / 1000);
    before.set(session, at);
  }
  return median(turns);
}

/** Calls that were sampled again: those whose answer the program had used before, and those that were under way. */
export function resampledOf(calls: readonly SampledCall[]): { readonly finished: number; readonly underWay: number } {
  const first = new Map<string, SampledCall>();
  const used = new Set<string>();
  const counts = { finished: 0, underWay: 0 };
  for (const call of calls) {
    const { session, prompt, after } = call;
    const place = `${session} ${prompt}`;
    used.add(`${session} ${after}`);
    const before = first.get(place);
    if (before === undefined) first.set(place, call);
    else if (used.has(`${session} ${before.whole}`)) counts.finished += 1;
    else counts.underWay += 1;
  }
  return counts;
}

/** How often each thing was told: `heard`, `once`, `keyed`. A keyed effect counts by its key, as whoever does it would. */
export class Counter {
  readonly told = {
    heard: new Map<string, number>(),
    once: new Map<string, number>(),
    keyed: new Map<string, number>(),
  };
  /** Ids of rollouts by keys of their keyed effects: two keys for one effect would do it twice. */
  readonly keys = new Map<string, Set<string>>();
  readonly #server = createServer((request, response) => {
    void this.#take(request).then(() => response.setHeader('content-type', 'application/json').end('{}'));
  });

  async open(): Promise<string> {
    await new Promise<void>((resolve) => this.#server.listen(0, '127.0.0.1', resolve));
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  close(): void {
    this.#server.closeAllConnections();
    this.#server.close();
  }

  async #take(request: IncomingMessage): Promise<void> {
    const parts: Buffer[] = [];
    for await (const part of request as AsyncIterable<Buffer>) parts.push(part);
    const { id, key } = JSON.parse(Buffer.concat(parts).toString()) as { readonly id: string; readonly key?: string };
    const counts = this.told[request.url!.slice(1) as keyof Counter['told']];
    counts.set(id, (counts.get(id) ?? 0) + 1);
    if (key !== undefined) this.keys.set(id, (this.keys.get(id) ?? new Set()).add(key));
  }
}

/** Beyond the first of each. */
export function beyondFirst(counts: ReadonlyMap<string, number>): number {
  return [...counts.values()].reduce((sum, count) => sum + count - 1, 0);
}
