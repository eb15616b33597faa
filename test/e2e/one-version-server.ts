import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';

/** Stands before a policy server as one that samples from the weights it was given last: it keeps no version, and answers 409 for another. */
export interface OneVersionServer {
  readonly url: string;
  /** The versions that were asked for samples, in runs: `['a', 'b', 'a']` where it went to b and back. */
  readonly sampled: readonly string[];
  /** Versions it was brought to, in order. */
  readonly loaded: readonly string[];
  /** How long it takes over each sample. What is under way when it is given another version is lost. */
  delayMs: number;
  close(): Promise<void>;
}

/** `secret`: of the policy server's project. It requires none itself, like a vLLM without a key. */
export async function oneVersionServer(policyUrl: string, secret: string): Promise<OneVersionServer> {
  let current: string | null = null;
  const sampled: string[] = [];
  const loaded: string[] = [];
  const server = createServer((request, response) => {
    request.on('error', () => undefined);
    void answer(request, response).catch(() => response.destroy());
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const one: OneVersionServer = {
    delayMs: 0,
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    sampled,
    loaded,
    async close() {
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
    },
  };
  return one;

  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const route = request.url ?? '';
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const body = Buffer.concat(chunks).toString();
    if (/^\/(hold|release)_version/.test(route)) return reply(response, 404, '{"detail":"Not Found"}');
    const { name, model } = (body === '' ? {} : JSON.parse(body)) as { name?: string; model?: string };
    const isSampling = route.startsWith('/v1/') && request.method === 'POST';
    if (isSampling && model === current && one.delayMs > 0) await delay(one.delayMs);
    if (isSampling && model !== current) return reply(response, 409, '{"error":{"message":"not held"}}');
    if (isSampling && sampled.at(-1) !== model) sampled.push(model!);
    const authorization = `Bearer ${secret}`;
    const init =
      request.method === 'POST'
        ? { method: 'POST', body, headers: { authorization, 'content-type': 'application/json' } }
        : { headers: { authorization } };
    const answered = await fetch(`${policyUrl}${route}`, init);
    if (route === '/update_weights' && answered.ok) loaded.push((current = name!));
    reply(response, answered.status, await answered.text());
  }
}

function reply(response: ServerResponse, status: number, body: string): void {
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end(body);
}
