import { fork } from 'node:child_process';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { hash32, uniform } from '../core/random.ts';

/**
 * An OpenAI-compatible server without a model, in a process of its own: it answers at once, or after a delay, always the same,
 * with token ids and logprobs as vLLM gives them. Measurements against it are of the client. `node --import tsx
 * bench/mock-model-server.ts --port 8000` starts one by hand.
 */
export interface MockOptions {
  /** 0 = a free port. */
  readonly port?: number;
  /** Before every answer of the model; with `sigma` the mean of them. */
  readonly delayMs?: number;
  /** Delays are log-normal, by the seed of their request: the standard deviation of their logarithm. */
  readonly sigma?: number;
  /** Share of the answers, chosen by seed, with a delay of `hangMs`. */
  readonly hangShare?: number;
  readonly hangMs?: number;
  /**
   * Answers differ by the seed of their request, as their delay does: from a half of it to the whole. They are the prompt's letters in reverse,
   * half of them right.
   */
  readonly bySeed?: boolean;
  /** Text of every answer. */
  readonly text?: string;
  readonly tokens?: number;
  /** Share of requests whose connection is reset: before the answer, after its headers, or in the middle of its body. */
  readonly dropShare?: number;
}

export interface MockServer {
  /** Without `/v1`. */
  readonly url: string;
  /** Requests that were answered, of each route, and connections that were cut. */
  counts(): Promise<MockCounts>;
  close(): Promise<void>;
}

export interface MockCounts {
  /** Prompts that were answered. */
  readonly prompts: number;
  readonly requests: number;
  readonly dropped: number;
  /** Requests that wait for their answer now, and over its life the seconds that all of them together have waited. */
  readonly inFlight: number;
  readonly waited_s: number;
  /** Seconds of CPU time of its process. */
  readonly cpu_s: number;
}

/** A mock in a process of its own. */
export async function startMockServer(options: MockOptions = {}): Promise<MockServer> {
  const args = Object.entries({
    port: options.port,
    'delay-ms': options.delayMs,
    'by-seed': options.bySeed,
    text: options.text,
    tokens: options.tokens,
    'drop-share': options.dropShare,
    sigma: options.sigma,
    'hang-share': options.hangShare,
    'hang-ms': options.hangMs,
  }).flatMap(([name, value]) =>
    value === undefined || value === false ? [] : [value === true ? `--${name}` : `--${name}=${value}`],
  );
  const child = fork(fileURLToPath(import.meta.url), args, { execArgv: ['--import', import.meta.resolve('tsx')] });
  const [url] = (await Promise.race([
    once(child, 'message'),
    once(child, 'exit').then(() => Promise.reject(new Error('The mock server ended before it was ready.'))),
  ])) as [string];
  return {
    url,
    counts: async () => {
      child.send('counts');
      const [counts] = (await once(child, 'message')) as [MockCounts];
      return counts;
    },
    close: async () => {
      if (child.exitCode !== null || child.signalCode !== null) return;
      const ended = once(child, 'exit');
      child.disconnect();
      await ended;
    },
  };
}

/** Tokens of its answers, the same for every request. */
const firstTokenId = 5;
const logprob = -0.5;
/** In the preset's vocabulary: <bos>, <eos>, <sep>, <pad>, then the letters. */
const endToken = 1;
const letterMin = 4;
const letters = 26;

/** Seed as sent; '' without one. */
function seedIn(chunks: readonly Buffer[]): string {
  return /"seeds?":\[?(\d+)/.exec(Buffer.concat(chunks).toString('latin1'))?.[1] ?? '';
}

/** Requests that wait, and for how long they have together. */
class Waiting {
  #now = 0;
  #waitedMs = 0;
  #changedAt = performance.now();

  add(count: number): void {
    const now = performance.now();
    this.#waitedMs += this.#now * (now - this.#changedAt);
    this.#changedAt = now;
    this.#now += count;
  }

  counts(): Pick<MockCounts, 'inFlight' | 'waited_s'> {
    this.add(0);
    return { inFlight: this.#now, waited_s: this.#waitedMs / 1000 };
  }
}

/** Milliseconds before the answer to a request of this seed. */
export function delayOf(
  seed: string,
  {
    delayMs = 0,
    bySeed = false,
    sigma = 0,
    hangShare = 0,
    hangMs = 0,
  }: Pick<MockOptions, 'delayMs' | 'bySeed' | 'sigma' | 'hangShare' | 'hangMs'>,
): number {
  if (hangShare > 0 && uniform('hang', seed) < hangShare) return hangMs;
  if (sigma > 0) {
    // The mean of a log-normal number is exp(μ + σ²/2).
    const normal =
      Math.sqrt(-2 * Math.log(1 - uniform('radius', seed))) * Math.cos(2 * Math.PI * uniform('angle', seed));
    return delayMs * Math.exp(sigma * normal - sigma ** 2 / 2);
  }
  return bySeed ? delayMs * (0.5 + uniform('delay', seed) / 2) : delayMs;
}

/** Whether a request is for the model rather than the server. */
function isWork(url: string): boolean {
  return url.startsWith('/v1/completions') || url.startsWith('/v1/chat/completions');
}

function serve({
  delayMs = 0,
  bySeed = false,
  text = 'olleh',
  tokens = 6,
  dropShare = 0,
  port = 0,
  ...delays
}: MockOptions): void {
  const counts = { prompts: 0, requests: 0, dropped: 0 };
  const waiting = new Waiting();
  const tokenIds = Array.from({ length: tokens }, (_, i) => firstTokenId + i);
  const choice = (ids: readonly number[]): string =>
    JSON.stringify({
      text,
      finish_reason: 'stop',
      token_ids: ids,
      logprobs: {
        tokens: ids.map(() => ''),
        token_logprobs: ids.map(() => logprob),
        top_logprobs: null,
        text_offset: [],
      },
    }).slice(1);
  const completion = choice(tokenIds);
  const choiceBy = (seed: string, prompt: unknown): string => {
    const isLetter = (id: unknown): id is number => typeof id === 'number' && id >= letterMin;
    const word = Array.isArray(prompt) ? prompt.filter(isLetter).toReversed() : [];
    const isRight = (i: number): boolean => uniform('right', seed, i) < 0.5;
    return choice([...word.map((id, i) => (isRight(i) ? id : letterMin + (hash32(seed, i) % letters))), endToken]);
  };
  const chat = {
    index: 0,
    finish_reason: 'stop',
    message: { role: 'assistant', content: text },
    token_ids: tokenIds,
    logprobs: { content: tokenIds.map((id) => ({ token: `token_id:${id}`, logprob, bytes: null, top_logprobs: [] })) },
  };

  const server = createServer((request, response) => void handle(request, response));
  server.keepAliveTimeout = 60_000;
  server.listen({ port, host: '127.0.0.1', backlog: 4096 }, () => {
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    if (process.send) process.send(url);
    else process.stdout.write(`${url}\n`);
  });
  process.on('message', () => process.send?.({ ...counts, ...waiting.counts(), cpu_s: cpuSeconds() }));
  process.on('disconnect', () => process.exit(0));

  async function handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    request.on('error', () => undefined); // a client that hangs up
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    await once(request, 'end').catch(() => undefined);
    const answer = (): void => {
      const body = answerTo(request.url ?? '/', Buffer.concat(chunks), response);
      if (body !== null) send(response, body);
    };
    counts.requests += 1;
    const seed = seedIn(chunks);
    const ms = isWork(request.url ?? '/') ? delayOf(seed, { delayMs, bySeed, ...delays }) : 0;
    if (ms === 0) return answer();
    const timer = setTimeout(answer, ms);
    waiting.add(1);
    // Also of a client that hangs up.
    response.once('close', () => {
      clearTimeout(timer);
      waiting.add(-1);
    });
  }

  function send(response: ServerResponse, body: string): void {
    if (dropShare > 0 && uniform('drop', counts.requests) < dropShare) {
      counts.dropped += 1;
      return drop(response, body, counts.dropped % 3);
    }
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) });
    response.end(body);
  }

  /** null where the answer was written already. */
  function answerTo(url: string, sent: Buffer, response: ServerResponse): string | null {
    switch (url.split('?', 1)[0]) {
      case '/v1/completions': {
        const { model, prompt } = JSON.parse(sent.toString()) as { model: string; prompt: unknown };
        const many = Array.isArray(prompt) && typeof prompt[0] !== 'number' ? prompt.length : 1;
        counts.prompts += many;
        const said = bySeed ? choiceBy(seedIn([sent]), prompt) : completion;
        const choices = Array.from({ length: many }, (_, index) => `{"index":${index},${said}`).join(',');
        return `{"id":"cmpl-0","object":"text_completion","created":0,"model":${JSON.stringify(model)},"choices":[${choices}],"usage":${JSON.stringify(usage(8))}}`;
      }
      case '/v1/chat/completions':
      case '/v1/chat/completions/tokens': {
        const body = JSON.parse(sent.toString()) as { model: string; stream?: boolean; tokens?: number[] };
        counts.prompts += 1;
        const head = { id: 'chatcmpl-0', created: 0, model: body.model };
        if (body.stream === true) return stream(response, head);
        const prompt_token_ids = body.tokens ?? [1, 2, 3, 4, 5, 6, 7, 8];
        return JSON.stringify({
          ...head,
          object: 'chat.completion',
          prompt_token_ids,
          choices: [chat],
          usage: usage(prompt_token_ids.length),
        });
      }
      case '/v1/models':
        return JSON.stringify({
          object: 'list',
          data: [{ id: 'mock', object: 'model', created: 0, owned_by: 'mock' }],
        });
      case '/tokenize':
        return JSON.stringify({ count: 8, max_model_len: 4096, tokens: [1, 2, 3, 4, 5, 6, 7, 8] });
      default:
        return '{"status":"ok"}';
    }
  }

  function stream(response: ServerResponse, head: Readonly<Record<string, unknown>>): null {
    const event = (delta: object, finish_reason: string | null): string =>
      `data: ${JSON.stringify({ ...head, object: 'chat.completion.chunk', choices: [{ index: 0, delta, finish_reason }] })}\n\n`;
    const last = { ...head, object: 'chat.completion.chunk', choices: [], usage: usage(8) };
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.end(
      event({ role: 'assistant', content: text }, null) +
        event({}, 'stop') +
        `data: ${JSON.stringify(last)}\n\ndata: [DONE]\n\n`,
    );
    return null;
  }

  function usage(prompt: number): Record<string, number> {
    return { prompt_tokens: prompt, completion_tokens: tokens, total_tokens: prompt + tokens };
  }
}

function drop(response: ServerResponse, body: string, how: number): void {
  const { socket } = response;
  if (how === 0 || socket === null) return void socket?.resetAndDestroy();
  response.writeHead(200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) });
  if (how === 1) response.flushHeaders();
  else response.write(body.slice(0, body.length >> 1));
  setImmediate(() => socket.resetAndDestroy());
}

function cpuSeconds(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = parseArgs({
    options: {
      port: { type: 'string' },
      'delay-ms': { type: 'string' },
      'by-seed': { type: 'boolean' },
      text: { type: 'string' },
      tokens: { type: 'string' },
      'drop-share': { type: 'string' },
      sigma: { type: 'string' },
      'hang-share': { type: 'string' },
      'hang-ms': { type: 'string' },
    },
  });
  serve({
    port: Number(values.port ?? 0),
    delayMs: Number(values['delay-ms'] ?? 0),
    bySeed: values['by-seed'] === true,
    ...(values.text === undefined ? {} : { text: values.text }),
    tokens: Number(values.tokens ?? 6),
    dropShare: Number(values['drop-share'] ?? 0),
    sigma: Number(values.sigma ?? 0),
    hangShare: Number(values['hang-share'] ?? 0),
    hangMs: Number(values['hang-ms'] ?? 0),
  });
}
