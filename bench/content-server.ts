import { createServer, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { hash32, uniform } from '../core/random.ts';

/**
 * An OpenAI-compatible server without a model that answers by what it is asked: the same question always gets the same answer, so two
 * clients can be compared, and every request is on record, so that one can be asked what it paid for.
 */
export interface ContentServerOptions {
  /** Answer to the last message; by default its word backwards, correct in `rightShare` of the cases. */
  readonly answer?: (asked: AskedOf) => string;
  readonly rightShare?: number;
  /** Rollouts of one example get different answers: by the session that they name, or by how often it was asked the same. */
  readonly varies?: 'session' | 'count';
  /** Before every answer, up to twice as long. */
  readonly delayMs?: number;
  /** A status to refuse a request with; undefined = answer it. */
  readonly refuse?: (asked: AskedOf) => number | undefined;
  /** US dollars for a million tokens, as Prime Inference lists them; missing = its list says none. */
  readonly pricing?: { readonly input_usd_per_mtok: number | string; readonly output_usd_per_mtok: number | string };
  /** The key it wants; none where missing. */
  readonly key?: string;
}

export interface AskedOf {
  readonly content: string;
  readonly session: string;
  /** From 0: how often it was asked the same before. */
  readonly times: number;
  /** Time of the request, ms since 1970. */
  readonly at: number;
  readonly body: Readonly<Record<string, unknown>>;
  readonly headers: IncomingMessage['headers'];
}

export interface ContentServer {
  /** Without `/v1`. */
  readonly url: string;
  /** Requests that were answered in full, oldest first. */
  readonly answered: readonly AskedOf[];
  close(): Promise<void>;
}

export async function startContentServer(options: ContentServerOptions = {}): Promise<ContentServer> {
  const { answer = reversed(options.rightShare ?? 0.6), varies, delayMs = 0, refuse, key, pricing } = options;
  const answered: AskedOf[] = [];
  const times = new Map<string, number>();
  const server = createServer((request, response) => {
    void (async () => {
      const send = (status: number, body: unknown): void => {
        response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
      };
      if (key !== undefined && request.headers.authorization !== `Bearer ${key}`) {
        return send(401, { error: { message: 'Incorrect API key provided.' } });
      }
      if (request.method === 'GET') {
        return send(200, { object: 'list', data: [{ id: 'other' }, { id: 'mock', ...(pricing && { pricing }) }] });
      }
      const at = Date.now();
      const body = JSON.parse(await textOf(request)) as Record<string, unknown>;
      const messages = body['messages'] as { readonly content: string }[];
      const content = messages.at(-1)!.content;
      const count = times.get(content) ?? 0;
      times.set(content, count + 1);
      const session = String(request.headers['x-session-id'] ?? '');
      const asked: AskedOf = { content, session, times: count, at, body, headers: request.headers };
      if (delayMs > 0) await delay(delayMs * (1 + uniform('delay', content, session)));
      const status = refuse?.(asked);
      if (status !== undefined) return send(status, { error: { message: `refused with ${status}` } });
      const text = answer({ ...asked, ...keyed(asked, varies) });
      response.once('finish', () => answered.push(asked));
      send(200, {
        id: `chat-${answered.length}`,
        object: 'chat.completion',
        created: 0,
        model: body['model'],
        choices: [{ index: 0, finish_reason: 'stop', message: { role: 'assistant', content: text } }],
        usage: {
          prompt_tokens: content.length,
          completion_tokens: text.length,
          total_tokens: content.length + text.length,
        },
      });
    })().catch(() => response.destroy()); // the client is gone
  });
  await listening(server);
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    answered,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

/** Values besides the content that an answer may depend on. */
function keyed(asked: AskedOf, varies: ContentServerOptions['varies']): Pick<AskedOf, 'session' | 'times'> {
  return { session: varies === 'session' ? asked.session : '', times: varies === 'count' ? asked.times : 0 };
}

function reversed(rightShare: number): (asked: AskedOf) => string {
  return ({ content, session, times }) => {
    const word = content.split(/\s+/).at(-1)!;
    const right = word.split('').reverse().join('');
    if (hash32('right', content, session, times) / 2 ** 32 < rightShare) return right;
    return `${right.slice(0, Math.max(1, right.length - 2))}zz`;
  };
}

async function textOf(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString('utf8');
}

function listening(server: Server): Promise<void> {
  server.keepAliveTimeout = 60_000;
  return new Promise((resolve) => server.listen({ port: 0, host: '127.0.0.1', backlog: 1024 }, () => resolve()));
}
