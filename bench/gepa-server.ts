import { fork } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { answerReflection, answerTask } from './gepa-world.ts';

/**
 * The simulated world of the GEPA benchmark behind an OpenAI-compatible API, in a process of its own: models `sim-task:SEED` and
 * `sim-reflect:SEED`, every answer after a delay. `node --import tsx bench/gepa-server.ts --port 8077 --latency-ms 50` starts one by hand.
 */
export interface GepaServer {
  /** Base URL, with `/v1`. */
  readonly url: string;
  stats(): Promise<GepaStats>;
  /** From its n-th request on it holds all answers, until `goOn`. */
  holdFrom(request: number): void;
  /** Answers what it held, and everybody from now on. */
  goOn(): void;
  close(): Promise<void>;
}

/** `GET /stats`. */
export interface GepaStats {
  readonly task: number;
  readonly reflect: number;
  /** Requests that had not been asked before. */
  readonly distinct_task: number;
  readonly distinct_reflect: number;
  /** Requests whose client was gone before the answer came. */
  readonly cut_off: number;
  /** Answers that wait for `goOn`. */
  readonly held: number;
  readonly rejected: number;
  readonly inflight: number;
  readonly max_inflight: number;
}

export interface GepaServerOptions {
  readonly latencyMs?: number;
  /** Share of requests that are answered with 500 the first time. */
  readonly flaky?: number;
}

export async function startGepaServer({ latencyMs = 0, flaky = 0 }: GepaServerOptions = {}): Promise<GepaServer> {
  const args = [`--latency-ms=${latencyMs}`, `--flaky=${flaky}`];
  const child = fork(fileURLToPath(import.meta.url), args, { execArgv: ['--import', import.meta.resolve('tsx')] });
  const [url] = (await Promise.race([
    once(child, 'message'),
    once(child, 'exit').then(() => Promise.reject(new Error('The simulated server ended before it was ready.'))),
  ])) as [string];
  return {
    url,
    stats: async () => (await (await fetch(new URL('/stats', url))).json()) as GepaStats,
    holdFrom: (request) => void child.send({ holdFrom: request }),
    goOn: () => void child.send({ holdFrom: null }),
    close: async () => {
      if (child.exitCode !== null || child.signalCode !== null) return;
      const ended = once(child, 'exit');
      child.disconnect();
      await ended;
    },
  };
}

interface ChatBody {
  readonly model: string;
  readonly messages: readonly { readonly role: string; readonly content: string }[];
  readonly seed?: number;
}

function serve({ port, latencyMs, flaky }: { port: number; latencyMs: number; flaky: number }): void {
  const stats = { task: 0, reflect: 0, cut_off: 0, rejected: 0, inflight: 0, max_inflight: 0 };
  const distinct = new Map<string, 'task' | 'reflect'>();
  const server = createServer((request, response) => void handle(request, response));
  server.keepAliveTimeout = 60_000;
  server.listen({ port, host: '127.0.0.1', backlog: 4096 }, () => {
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`;
    if (process.send) process.send(url);
    else process.stdout.write(`${url}\n`);
  });
  process.on('disconnect', () => process.exit(0));
  let holdFrom = Infinity;
  const held: (() => void)[] = [];
  process.on('message', (said: { readonly holdFrom: number | null }) => {
    holdFrom = said.holdFrom ?? Infinity;
    if (said.holdFrom === null) for (const answerNow of held.splice(0)) answerNow();
  });

  async function handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    if (request.method === 'GET' && request.url === '/stats') return send(response, 200, statsNow());
    if (request.method !== 'POST' || request.url !== '/v1/chat/completions') {
      return send(response, 404, { error: { message: 'not found' } });
    }
    request.on('error', () => undefined); // an asker that hangs up
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    await once(request, 'end').catch(() => undefined);
    const body = JSON.parse(Buffer.concat(chunks).toString()) as ChatBody;
    const [kind, seed] = body.model.split(':');
    if (kind !== 'sim-task' && kind !== 'sim-reflect') {
      return send(response, 404, { error: { message: `unknown model ${body.model}` } });
    }
    answer(kind === 'sim-task' ? 'task' : 'reflect', Number(seed), body, response);
  }

  function answer(kind: 'task' | 'reflect', seed: number, body: ChatBody, response: ServerResponse): void {
    const mark = createHash('sha1')
      .update(JSON.stringify([body.model, body.messages, body.seed ?? 0]))
      .digest();
    const isFirst = !distinct.has(mark.toString('hex'));
    distinct.set(mark.toString('hex'), kind);
    if (isFirst && mark.readUInt32BE(0) / 2 ** 32 < flaky) {
      stats.rejected += 1;
      return send(response, 500, { error: { message: 'simulated failure' } });
    }
    stats[kind] += 1;
    stats.inflight += 1;
    stats.max_inflight = Math.max(stats.max_inflight, stats.inflight);
    const of = (role: string) =>
      body.messages
        .filter((one) => one.role === role)
        .map(({ content }) => content)
        .join('\n');
    const content =
      kind === 'task' ? answerTask(seed, of('system'), of('user')) : answerReflection(seed, of('user'), body.seed ?? 0);
    const isHeld = stats.task + stats.reflect >= holdFrom;
    const say = (): void => {
      stats.inflight -= 1;
      if (response.destroyed || response.socket === null) {
        stats.cut_off += 1;
        return;
      }
      const choice = { index: 0, finish_reason: 'stop', message: { role: 'assistant', content } };
      const usage = { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 };
      send(response, 200, {
        id: 'sim',
        object: 'chat.completion',
        created: 0,
        model: body.model,
        choices: [choice],
        usage,
      });
    };
    if (isHeld) held.push(say);
    else setTimeout(say, latencyMs);
  }

  function statsNow(): GepaStats {
    const count = (kind: string): number => [...distinct.values()].filter((one) => one === kind).length;
    return { ...stats, held: held.length, distinct_task: count('task'), distinct_reflect: count('reflect') };
  }
}

function send(response: ServerResponse, status: number, body: object): void {
  const text = JSON.stringify(body);
  response.writeHead(status, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) });
  response.end(text);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = parseArgs({
    options: { port: { type: 'string' }, 'latency-ms': { type: 'string' }, flaky: { type: 'string' } },
  });
  const { port = 0, 'latency-ms': latencyMs = 0, flaky = 0 } = values;
  serve({ port: Number(port), latencyMs: Number(latencyMs), flaky: Number(flaky) });
}
