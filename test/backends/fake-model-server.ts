import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';

export interface FakeCall {
  readonly route: string;
  readonly headers: IncomingHttpHeaders;
  readonly body: {
    readonly model?: string;
    readonly name?: string;
    readonly prompt?: readonly number[];
    readonly allowed_token_ids?: readonly number[];
    readonly [key: string]: unknown;
  };
}
export type FakeAnswer = (call: FakeCall, response: ServerResponse) => void;

export interface FakeModelServer {
  readonly url: string;
  readonly port: number;
  /** All but probes. */
  readonly calls: FakeCall[];
  readonly held: Set<string>;
  /** Prompts in flight, and the most there ever were. */
  readonly flight: { now: number; most: number };
  /** In place of what it does, by route; changed while it runs. */
  answers: Partial<Record<string, FakeAnswer>>;
  probes: number;
  stop(): Promise<void>;
}

/** An OpenAI-compatible server of a few lines: it holds versions by name, and its sample is the prompt backwards. */
export async function fakeModelServer(t: TestContext, port = 0): Promise<FakeModelServer> {
  const server = createServer((request, response) => void answer(request, response));
  const flight = { now: 0, most: 0 };
  const held = new Set<string>();
  const calls: FakeCall[] = [];
  server.listen(port, '127.0.0.1');
  await once(server, 'listening');
  const chosen = (server.address() as AddressInfo).port;
  const fake: FakeModelServer = {
    url: `http://127.0.0.1:${chosen}`,
    port: chosen,
    calls,
    held,
    flight,
    answers: {},
    probes: 0,
    async stop() {
      if (!server.listening) return;
      const closed = once(server, 'close');
      server.close();
      server.closeAllConnections();
      await closed;
    },
  };
  t.after(() => fake.stop());
  return fake;

  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    request.on('error', () => undefined);
    const route = request.url ?? '';
    const special = fake.answers[route];
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const text = Buffer.concat(chunks).toString();
    const call = { route, headers: request.headers, body: (text === '' ? {} : JSON.parse(text)) as FakeCall['body'] };
    if (route === '/health') {
      fake.probes += 1;
      return special ? special(call, response) : reply(response, 200, {});
    }
    calls.push(call);
    flight.now += 1;
    flight.most = Math.max(flight.most, flight.now);
    response.once('close', () => (flight.now -= 1));
    if (special) return special(call, response);
    if (route === '/update_weights') {
      held.add(call.body.name!);
      return reply(response, 200, {});
    }
    if (!held.has(call.body.model ?? '')) return reply(response, 409, { error: { message: 'not held' } });
    complete(call, response);
  }
}

export function reply(
  response: ServerResponse,
  status: number,
  body: unknown,
  headers: Readonly<Record<string, string>> = {},
): void {
  response.writeHead(status, { 'content-type': 'application/json', ...headers });
  response.end(typeof body === 'string' ? body : JSON.stringify(body));
}

/** The prompt backwards, or the token that it is forced to. */
export function complete({ body }: FakeCall, response: ServerResponse): void {
  const tokenIds = body.allowed_token_ids ?? body.prompt!.toReversed();
  const choice = {
    index: 0,
    finish_reason: 'stop',
    token_ids: tokenIds,
    logprobs: { token_logprobs: tokenIds.map((token) => -token) },
  };
  reply(response, 200, { choices: [choice] });
}
