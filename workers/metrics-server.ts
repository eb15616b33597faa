import { createHash, timingSafeEqual } from 'node:crypto';
import { createServer, type Server } from 'node:http';
import { RatchetError } from '../core/errors.ts';

/** The usual port of Prometheus exporters that belong to an application. */
export const usualMetricsPort = 9464;

export interface MetricsServerOptions {
  readonly host: string;
  readonly port: number;
  /** Asked for as `Authorization: Bearer KEY`. Must be there when the host is not loopback. */
  readonly key: string | null;
  readonly text: () => string;
}

const loopback = new Set(['127.0.0.1', '::1', 'localhost']);

/** Serves `GET /metrics`, and `/health`. */
export async function startMetricsServer({ host, port, key, text }: MetricsServerOptions): Promise<Server> {
  if (!loopback.has(host) && key === null) {
    throw new RatchetError(
      'ConfigInvalid',
      `RATCHET_METRICS_HOST is ${host}: expected a key beyond loopback. Set RATCHET_METRICS_KEY, which Prometheus then sends (authorization: credentials), or leave the host out.`,
    );
  }
  const server = createServer((request, response) => {
    const [pathname] = (request.url ?? '').split('?'); // anything may stand there: it is compared, never parsed
    const isKnown = pathname === '/metrics' || pathname === '/health';
    const status = !isKnown
      ? 404
      : request.method !== 'GET'
        ? 405
        : pathname === '/metrics' && !isAllowed(request.headers.authorization, key)
          ? 401
          : 200;
    const body = status !== 200 ? '' : pathname === '/health' ? 'ok\n' : text();
    response.writeHead(status, { 'content-type': 'text/plain; version=0.0.4; charset=utf-8' }).end(body);
  });
  await new Promise<void>((resolve, reject) => server.once('error', reject).listen(port, host, resolve));
  return server;
}

function isAllowed(header: string | undefined, key: string | null): boolean {
  if (key === null) return true;
  const digest = (text: string) => createHash('sha256').update(text).digest();
  return timingSafeEqual(digest(header ?? ''), digest(`Bearer ${key}`));
}
