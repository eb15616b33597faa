import { createServer, type Server } from 'node:http';
import { RatchetError } from '../../core/errors.ts';
import { Gate, isLoopback, type ServerKey } from '../../engine/index.ts';

/** Default port: the one that Prometheus exporters of applications use by convention. */
export const defaultMetricsPort = 9464;

interface MetricsServerOptions {
  readonly host: string;
  readonly port: number;
  /** Required at `/metrics`. Beyond loopback it must be set by the operator. */
  readonly key: ServerKey;
  readonly text: () => string;
  /** Why the figures are old; null while they are not. */
  readonly whyNotReady?: () => string | null;
}

/** Serves `GET /metrics`, and `/health` and `/ready`, which need no key. */
export async function startMetricsServer({
  host,
  port,
  key,
  text,
  whyNotReady = () => null,
}: MetricsServerOptions): Promise<Server> {
  if (!isLoopback(host) && key.kind !== 'chosen') {
    throw new RatchetError(
      'ConfigInvalid',
      `RATCHET_METRICS_HOST is ${host}: expected a key beyond loopback. Set RATCHET_METRICS_KEY, which Prometheus then sends (authorization: credentials), or leave the host out.`,
    );
  }
  const gate = new Gate(key);
  const server = createServer((request, response) => {
    const say = (status: number, body: string): void => {
      response.writeHead(status, { 'content-type': 'text/plain; version=0.0.4; charset=utf-8' }).end(body);
    };
    const [pathname] = (request.url ?? '').split('?'); // the header is compared, never parsed
    if (!['/metrics', '/health', '/ready'].includes(pathname!)) return say(404, '');
    if (request.method !== 'GET') return say(405, '');
    if (pathname === '/health') return say(200, 'ok\n');
    if (pathname === '/ready') {
      const because = whyNotReady();
      return because === null ? say(200, 'ready\n') : say(503, `${because}\n`);
    }
    const refusal = gate.refuse(request.headers);
    if (refusal !== null) return say(refusal.status, `${refusal.message}\n`);
    say(200, text());
  });
  await new Promise<void>((resolve, reject) => server.once('error', reject).listen(port, host, resolve));
  return server;
}
