/** A server in a process of its own to be fuzzed, and what any answer of it must be. */
import assert from 'node:assert/strict';
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { Agent, type IncomingMessage, request as httpRequest } from 'node:http';
import { connect } from 'node:net';
import { setTimeout } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { type FuzzCase, fuzzCase } from './server-fuzz-cases.ts';

export interface Answer {
  readonly status: number;
  readonly text: string;
}

/** Throws what is wrong with an answer. */
export function checkAnswer({ expect }: FuzzCase, { status, text }: Answer): void {
  if (expect === 'none') return;
  const isOk = status >= 200 && status < 300;
  assert.ok(isOk || (status >= 400 && status < 500), `status ${status}: ${text.slice(0, 500)}`);
  if (expect === 'ok') assert.ok(isOk, `expected a good answer, got ${status}: ${text.slice(0, 500)}`);
  if (expect === 'refused') assert.ok(!isOk, `expected a refusal, got ${status}: ${text.slice(0, 500)}`);
  if (!isOk) {
    const { error } = JSON.parse(text) as { error: { message: string; type: string } };
    assert.ok(
      error.message.length > 10 && error.message.length < 2500,
      `a message of ${error.message.length} characters`,
    );
    assert.equal(error.type, status === 429 ? 'rate_limit_error' : 'invalid_request_error');
  } else if (text.startsWith('data: ')) {
    assert.ok(text.endsWith('\n\ndata: [DONE]\n\n'), `a stream that ends with ${text.slice(-100)}`);
    assert.ok(!text.includes('data: {"error"'), text.slice(-500));
  } else if (!text.startsWith('# HELP')) JSON.parse(text);
}

/** Sends one request; an answer of status 0 stands for one whose client went away. */
export async function send(port: number, agent: Agent, fuzz: FuzzCase): Promise<Answer> {
  if (fuzz.raw !== null) return sendRaw(port, fuzz.raw);
  if (fuzz.sentShare < 1) return sendTorn(port, fuzz);
  const { method, path, body } = fuzz;
  const headers = { 'content-type': 'application/json', 'content-length': body.length };
  const request = httpRequest({ host: '127.0.0.1', port, agent, method, path, headers });
  const answered = once(request, 'response') as Promise<[IncomingMessage]>;
  request.end(body);
  const [response] = await answered;
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of response as AsyncIterable<Buffer>) {
    chunks.push(chunk);
    size += chunk.length;
    if (fuzz.leavesAfterBytes !== null && size > fuzz.leavesAfterBytes) {
      request.destroy();
      return { status: 0, text: '' };
    }
  }
  return { status: response.statusCode ?? 0, text: Buffer.concat(chunks).toString('utf8') };
}

/** Writes whatever it is given and waits until the server has answered or hung up. */
async function sendRaw(port: number, text: string): Promise<Answer> {
  const socket = connect(port, '127.0.0.1');
  socket.on('error', () => undefined); // hanging up is a right answer to what is no HTTP
  const done = once(socket, 'data').catch(() => undefined);
  socket.end(text, 'latin1');
  await Promise.race([done, once(socket, 'close')]);
  socket.destroy();
  return { status: 0, text: '' };
}

async function sendTorn(port: number, { body, sentShare, path }: FuzzCase): Promise<Answer> {
  const socket = connect(port, '127.0.0.1');
  socket.on('error', () => undefined); // as above
  const head = `POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: ${body.length + 1}\r\n\r\n`;
  const whole = Buffer.concat([Buffer.from(head), body]);
  await new Promise<void>((resolve) => {
    socket.write(whole.subarray(0, Math.floor(sentShare * whole.length) + 1), () => resolve());
    socket.once('close', () => resolve());
  });
  socket.destroy();
  return { status: 0, text: '' };
}

/**
 * Bytes in use after a collection. `kept` is the sampler's room for keys and values: as much as its largest batch so far took.
 * `live` is JavaScript's heap and what it holds outside of it, without what is kept.
 */
export interface Memory {
  readonly live: number;
  readonly rss: number;
  readonly kept: number;
}

/** A policy server in a process of its own that holds the smallest preset as "policy". */
export class FuzzServer {
  readonly port: number;
  readonly #child: ChildProcess;

  private constructor(child: ChildProcess, port: number) {
    this.#child = child;
    this.port = port;
  }

  static async start(): Promise<FuzzServer> {
    const child = fork(fileURLToPath(new URL('server-fuzz-child.ts', import.meta.url)), {
      execArgv: ['--expose-gc', '--import', import.meta.resolve('tsx')],
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    });
    const [message] = (await once(child, 'message')) as [{ port: number }];
    return new FuzzServer(child, message.port);
  }

  get hasExited(): boolean {
    return this.#child.exitCode !== null || this.#child.signalCode !== null;
  }

  /** Once nothing is under way. */
  async memory(): Promise<Memory> {
    await this.settled();
    const kept = await this.metric('ratchet_key_value_bytes_kept');
    const answered = once(this.#child, 'message') as Promise<[{ live: number; rss: number }]>;
    this.#child.send('memory');
    const [{ live, rss }] = await answered;
    return { live: live - kept, rss, kept };
  }

  async stop(): Promise<void> {
    if (this.hasExited) return;
    const exited = once(this.#child, 'exit');
    this.#child.kill();
    await exited;
  }

  /** Returns when nothing runs, waits or keeps keys and values any more. */
  async settled(): Promise<void> {
    const rows = ['ratchet_rows_running', 'ratchet_rows_waiting'];
    const names = [...rows, 'ratchet_key_value_bytes_used', 'ratchet_requests_running'];
    for (let attempts = 200; ; attempts--) {
      const values = await Promise.all(names.map((name) => this.metric(name)));
      if (values.every((value) => value === 0)) return;
      assert.ok(attempts > 0, `something never ended: ${names.map((name, i) => `${name} ${values[i]}`).join(', ')}`);
      await setTimeout(50);
    }
  }

  /** One value of GET /metrics. */
  async metric(name: string): Promise<number> {
    const text = await (await fetch(`http://127.0.0.1:${this.port}/metrics`)).text();
    const line = text.split('\n').find((candidate) => candidate.startsWith(`${name} `));
    assert.ok(line, `the metric ${name}`);
    return Number(line.slice(name.length + 1));
  }
}

export interface FuzzTally {
  readonly requests: number;
  /** Answers by status; 0 = the client went away. */
  readonly statuses: Record<number, number>;
  readonly kinds: Record<string, number>;
}

interface Cases {
  readonly seed: number;
  readonly from: number;
  /** Exclusive. */
  readonly to: number;
  readonly atOnce: number;
  /** Called with a wrong answer and its case; without it, the first one ends everything. */
  readonly onWrong?: (error: Error) => void;
}

/** Runs a range of cases, so many at a time. */
export async function runCases(server: FuzzServer, cases: Cases): Promise<FuzzTally> {
  const { seed, from, to, atOnce } = cases;
  const agent = new Agent({ keepAlive: true, maxSockets: atOnce });
  const tally: FuzzTally = { requests: to - from, statuses: {}, kinds: {} };
  let next = from;
  const work = async (): Promise<void> => {
    while (next < to) await runCase(server, { seed, i: next++, agent, tally, onWrong: cases.onWrong });
  };
  try {
    await Promise.all(Array.from({ length: atOnce }, work));
  } finally {
    agent.destroy();
  }
  return tally;
}

async function runCase(
  server: FuzzServer,
  {
    seed,
    i,
    agent,
    tally,
    onWrong,
  }: Pick<Cases, 'seed'> & { i: number; agent: Agent; tally: FuzzTally; onWrong: Cases['onWrong'] },
): Promise<void> {
  const fuzz = fuzzCase(seed, i);
  tally.kinds[fuzz.kind] = (tally.kinds[fuzz.kind] ?? 0) + 1;
  try {
    const answer = await send(server.port, agent, fuzz);
    tally.statuses[answer.status] = (tally.statuses[answer.status] ?? 0) + 1;
    checkAnswer(fuzz, answer);
  } catch (cause) {
    const what = `${fuzz.kind} ${fuzz.method} ${fuzz.path} ${fuzz.body.toString('utf8').slice(0, 500)}`;
    const error = new Error(`case ${i} of seed ${seed} (${what}): ${String(cause)}`, { cause });
    if (!onWrong) throw error;
    onWrong(error);
  }
}
