import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';

interface HealthOptions {
  readonly host: string;
  /** 0 = any free port. */
  readonly port: number;
  /** Why it gets no work; null when it does. */
  readonly whyNotReady: () => string | null;
}

/**
 * Answers `GET /health` as long as the process runs its code, and `GET /ready` by 200 or 503. It asks for no key, so it
 * may listen beyond loopback: it tells nothing of runs.
 */
export async function startHealthServer({ host, port, whyNotReady }: HealthOptions): Promise<Server> {
  const server = createServer((request, response) => {
    const say = (status: number, body: object): void => {
      response.writeHead(status, { 'content-type': 'application/json' }).end(`${JSON.stringify(body)}\n`);
    };
    if (request.method !== 'GET') return say(405, { error: 'Expected GET.' });
    const [pathname] = (request.url ?? '').split('?');
    if (pathname === '/health') return say(200, { status: 'ok' });
    if (pathname !== '/ready') return say(404, { error: 'Expected /health or /ready.' });
    const because = whyNotReady();
    if (because === null) return say(200, { status: 'ready' });
    say(503, { status: 'not ready', because });
  });
  await new Promise<void>((resolve, reject) => server.once('error', reject).listen(port, host, resolve));
  server.unref();
  return server;
}

/** Where it listens, for people. */
export function addressOf(server: Server): string {
  const { address, port, family } = server.address() as AddressInfo;
  return `http://${family === 'IPv6' ? `[${address}]` : address}:${port}`;
}
