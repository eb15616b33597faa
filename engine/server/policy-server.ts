import { once } from 'node:events';
import { createServer, type Server, STATUS_CODES } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';
import { RatchetError } from '../../core/errors.ts';
import type { Provider } from '../onnx/session.ts';
import { connectionsMax, headersTimeoutMs, requestTimeoutMs } from '../limits.ts';
import type { SpeechParsers } from '../speech/speech.ts';
import type { ServerKey } from './gate.ts';
import { errorBody, HttpError } from './http-error.ts';
import { sendError } from './http.ts';
import { isLoopback } from './loopback.ts';
import { Routes } from './routes.ts';

export interface PolicyServerOptions {
  /** 127.0.0.1 by default. Any other host than this machine's loopback requires a chosen key. */
  readonly host?: string;
  /** 0 = any free port. */
  readonly port?: number;
  readonly threads: number;
  /** Device for versions that do not name one; cpu by default. */
  readonly provider?: Provider;
  readonly allowRoots: readonly string[];
  readonly maxVersions?: number;
  /**
   * Memory budget of the process in GB, unless a version requires more. The default depends on the machine and the
   * model.
   */
  readonly memoryGb?: number;
  /**
   * Demanded on every route but /health, /liveness, /ready and /ping. Null: every user of this machine may sample, load and
   * pause.
   */
  readonly key: ServerKey | null;
  /** vLLM's names of the formats of calls and thoughts; by default the chat template decides. */
  readonly parsers?: Partial<SpeechParsers>;
  /** Called for every loaded version and every refused request. */
  readonly log?: (line: string) => void;
}

export interface PolicyServer {
  /** Base of all routes; the openai client's baseURL is this + '/v1'. */
  readonly url: string;
  readonly port: number;
  /** Cuts requests in flight. */
  close(): Promise<void>;
}

/** Longer than clients keep idle connections, so that clients close them. */
const keepAliveMs = 75_000;
/** Interval of the check for slow requests. */
const connectionsCheckingMs = 5_000;

/** OpenAI-compatible HTTP server over policy versions held in this process. */
export async function startPolicyServer(options: PolicyServerOptions): Promise<PolicyServer> {
  const host = options.host ?? '127.0.0.1';
  requireKeyBeyondLoopback(host, options.key);
  const routes = new Routes(options);
  const server = openHttpServer(routes);
  server.listen({ port: options.port ?? 0, host, backlog: connectionsMax });
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const name = host.includes(':') ? `[${host}]` : host;
  return { url: `http://${name}:${port}`, port, close: () => closeServer(server, routes) };
}

/** Limits the time for headers and bodies. Anything that is not HTTP gets an error and is cut off. */
function openHttpServer(routes: Routes): Server {
  const server = createServer(
    {
      keepAliveTimeout: keepAliveMs,
      headersTimeout: headersTimeoutMs,
      requestTimeout: requestTimeoutMs,
      connectionsCheckingInterval: connectionsCheckingMs,
    },
    (request, response) => void routes.handle(request, response),
  );
  server.maxConnections = connectionsMax;
  // A client that pipelines has one listener per request on its connection.
  server.on('connection', (socket) => socket.setMaxListeners(0));
  server.on('clientError', refuseBrokenHttp);
  server.on('checkExpectation', (_, response) => {
    sendError(response, new HttpError(417, 'Expected no header "Expect" but "100-continue".'));
  });
  server.on('connect', (_, socket) => {
    socket.on('error', () => socket.destroy());
    writeError(socket, new HttpError(400, 'Expected a request for a route, got one for a tunnel.'));
  });
  return server;
}

/** Node's parser refused: the request was malformed, its headers too large, or too slow in coming. */
function refuseBrokenHttp(error: Error & { code?: string }, socket: Duplex): void {
  const refusals: Readonly<Record<string, [status: number, message: string]>> = {
    HPE_HEADER_OVERFLOW: [431, 'The headers are larger than 16 KiB.'],
    ERR_HTTP_REQUEST_TIMEOUT: [408, `The request took too long to arrive: more than ${requestTimeoutMs / 1000} s.`],
  };
  const [status, message] = refusals[error.code ?? ''] ?? [
    400,
    `Expected a request in HTTP/1.1 (${error.code ?? 'broken'}).`,
  ];
  writeError(socket, new HttpError(status, message));
}

function writeError(socket: Duplex, error: HttpError): void {
  if (!socket.writable) {
    socket.destroy();
    return;
  }
  const body = JSON.stringify(errorBody(error));
  const headers = `content-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close`;
  socket.end(`HTTP/1.1 ${error.status} ${STATUS_CODES[error.status]}\r\n${headers}\r\n\r\n${body}`, () =>
    socket.destroy(),
  );
}

function requireKeyBeyondLoopback(host: string, key: ServerKey | null): void {
  if (isLoopback(host) || (key?.kind === 'chosen' && key.value !== '')) return;
  throw new RatchetError(
    'ConfigInvalid',
    `Listening on ${host} would let anyone who reaches it sample and load weights. Expected an API key ` +
      `(--api-key-env NAME, with NAME set), or the host 127.0.0.1.`,
  );
}

async function closeServer(server: Server, routes: Routes): Promise<void> {
  const closed = once(server, 'close');
  server.close();
  server.closeAllConnections();
  await closed;
  await routes.close();
}
