import { createHash, timingSafeEqual } from 'node:crypto';
import { createServer, type IncomingHttpHeaders, type Server } from 'node:http';
import { RatchetError } from '../core/errors.ts';
import { foreignHeader, isLoopback } from '../engine/index.ts';

/** The usual port of Prometheus exporters that belong to an application. */
export const usualMetricsPort = 9464;

interface MetricsServerOptions {
  readonly host: string;
  readonly port: number;
  /** Asked for as `Authorization: Bearer KEY`. Must be there when the host is not loopback. */
  readonly key: string | null;
  readonly text: () => string;
}

/** Serves `GET /metrics`, and `/health`. */
export async function startMetricsServer({ host, port, key, text }: MetricsServerOptions): Promise<Server> {
  if (!isLoopback(host) && key === null) {
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
        : pathname === '/metrics' && !isAllowed(request.headers, key)
          ? 401
          : 200;
    const body = status !== 200 ? '' : pathname === '/health' ? 'ok\n' : text();
    response.writeHead(status, { 'content-type': 'text/plain; version=0.0.4; charset=utf-8' }).end(body);
  });
  await new Promise<void>((resolve, reject) => server.once('error', reject).listen(port, host, resolve));
  return server;
}

function isAllowed(headers: IncomingHttpHeaders, key: string | null): boolean {
  if (key === null) return foreignHeader(headers) === null;
  const digest = (text: string) => createHash('sha256').update(text).digest();
  return timingSafeEqual(digest(headers.authorization ?? ''), digest(`Bearer ${key}`));
}
