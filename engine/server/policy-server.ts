import { timingSafeEqual } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { policyVersionsHeld } from '../../core/limits.ts';
import { RatchetError } from '../../core/errors.ts';
import { waitingRequestsMax } from '../limits.ts';
import { chat, complete } from './generation.ts';
import { HttpError, readJson, sendError, sendJson, sendText } from './http.ts';
import { metricsText, TokenRate } from './metrics.ts';
import { PauseGate } from './pause-gate.ts';
import { type HeldVersion, PolicyVersions } from './versions.ts';
import { ChatRequest, CompletionRequest, parseBody, parseSamplingBody, UpdateWeightsRequest } from './wire.ts';

export interface PolicyServerOptions {
  /** 127.0.0.1 unless given. Any host that is not this machine's loopback demands an API key. */
  readonly host?: string;
  /** 0 = one that is free. */
  readonly port?: number;
  readonly threads: number;
  readonly allowRoots: readonly string[];
  readonly maxVersions?: number;
  /** Demanded as `Authorization: Bearer …` on every route but /health. */
  readonly apiKey?: string;
  /** Told of every version that is loaded and every request that is refused. */
  readonly log?: (line: string) => void;
}

export interface PolicyServer {
  /** Base of all routes; the openai client's baseURL is this + '/v1'. */
  readonly url: string;
  readonly port: number;
  /** Requests in flight are cut. */
  close(): Promise<void>;
}

const loopbackHosts = new Set(['127.0.0.1', '::1', 'localhost']);
/** Longer than clients keep idle connections, so that it is they who close them. */
const keepAliveMs = 75_000;

/** OpenAI-compatible HTTP server over policy versions held in this process. */
export async function startPolicyServer(options: PolicyServerOptions): Promise<PolicyServer> {
  const host = options.host ?? '127.0.0.1';
  requireKeyBeyondLoopback(host, options.apiKey);
  const policyServer = new Routes(options);
  const server = createServer((request, response) => void policyServer.handle(request, response));
  server.keepAliveTimeout = keepAliveMs;
  server.listen(options.port ?? 0, host);
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const name = host.includes(':') ? `[${host}]` : host;
  return { url: `http://${name}:${port}`, port, close: () => closeServer(server, policyServer) };
}

function requireKeyBeyondLoopback(host: string, apiKey: string | undefined): void {
  if (loopbackHosts.has(host) || apiKey) return;
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

type Handler = (request: IncomingMessage, response: ServerResponse) => void | Promise<void>;

class Routes {
  readonly #versions: PolicyVersions;
  readonly #gate = new PauseGate(waitingRequestsMax);
  readonly #rate = new TokenRate();
  readonly #apiKey: string | undefined;
  readonly #log: (line: string) => void;
  #requestsRunning = 0;

  readonly #handlers: Readonly<Record<string, Handler>> = {
    'GET /health': (_, response) => sendJson(response, 200, { status: this.#gate.isPaused ? 'paused' : 'ok' }),
    'GET /metrics': (_, response) => this.#sendMetrics(response),
    'GET /v1/models': (_, response) =>
      sendJson(response, 200, { object: 'list', data: this.#versions.list().map(describe) }),
    'POST /v1/completions': (request, response) =>
      this.#generate(request, response, (body) => {
        const parsed = parseSamplingBody(CompletionRequest, body);
        return { model: parsed.model, run: (version, signal) => complete(version, parsed, signal) };
      }),
    'POST /v1/chat/completions': (request, response) =>
      this.#generate(request, response, (body) => {
        const parsed = parseSamplingBody(ChatRequest, body);
        return { model: parsed.model, run: (version, signal) => chat(version, parsed, signal) };
      }),
    'POST /pause': (_, response) => {
      this.#gate.pause();
      sendJson(response, 200, { status: 'paused' });
    },
    'POST /resume': (_, response) => {
      this.#gate.resume();
      sendJson(response, 200, { status: 'ok' });
    },
    'POST /update_weights': async (request, response) => {
      const body = parseBody(UpdateWeightsRequest, await readJson(request));
      const startedAt = performance.now();
      this.#log(`loading ${body.name} from ${body.weight_dir}`);
      const version = describe(await this.#versions.load(body));
      this.#log(`holding ${body.name}, loaded in ${Math.round(performance.now() - startedAt)} ms`);
      sendJson(response, 200, { status: 'ok', ...version });
    },
  };

  constructor(options: PolicyServerOptions) {
    const { threads, allowRoots, maxVersions = policyVersionsHeld } = options;
    this.#versions = new PolicyVersions({ threads, allowRoots, maxVersions });
    this.#apiKey = options.apiKey;
    this.#log = options.log ?? (() => undefined);
  }

  async handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    try {
      const path = (request.url ?? '/').split('?', 1)[0]!;
      this.#authorize(path, request);
      await this.#handlerOf(request.method ?? 'GET', path)(request, response);
    } catch (error) {
      this.#log(`refused ${request.method} ${request.url}: ${error instanceof Error ? error.message : String(error)}`);
      sendError(response, error);
    }
  }

  async close(): Promise<void> {
    this.#gate.resume();
    await this.#versions.close();
  }

  #handlerOf(method: string, path: string): Handler {
    const handler = this.#handlers[`${method} ${path}`];
    if (handler) return handler;
    const allowed = Object.keys(this.#handlers).filter((route) => route.endsWith(` ${path}`));
    if (allowed.length === 0) {
      throw new HttpError(404, `There is no ${path}. Routes: ${Object.keys(this.#handlers).join(', ')}.`);
    }
    throw new HttpError(405, `${path} answers to ${allowed.join()}, not ${method}.`);
  }

  #authorize(path: string, request: IncomingMessage): void {
    if (this.#apiKey === undefined || path === '/health') return;
    const given = Buffer.from(request.headers.authorization ?? '');
    const expected = Buffer.from(`Bearer ${this.#apiKey}`);
    if (given.length === expected.length && timingSafeEqual(given, expected)) return;
    throw new HttpError(401, 'Expected the header "Authorization: Bearer KEY" with this server\'s key.');
  }

  async #generate(
    request: IncomingMessage,
    response: ServerResponse,
    parse: (body: unknown) => {
      model: string;
      run: (version: HeldVersion, signal: AbortSignal) => Promise<Record<string, unknown>>;
    },
  ): Promise<void> {
    const { model, run } = parse(await readJson(request));
    const controller = new AbortController();
    response.once('close', () => controller.abort(new HttpError(499, 'The client closed the connection.')));
    await this.#gate.pass(controller.signal);
    this.#requireRoom();
    this.#requestsRunning++;
    try {
      sendJson(response, 200, await this.#versions.use(model, (version) => run(version, controller.signal)));
    } finally {
      this.#requestsRunning--;
    }
  }

  #requireRoom(): void {
    if (this.#requestsRunning < waitingRequestsMax) return;
    const message = `${waitingRequestsMax} requests are being answered already. Ask again later.`;
    throw new HttpError(429, message, { headers: { 'retry-after': '1' } });
  }

  async #sendMetrics(response: ServerResponse): Promise<void> {
    const { rowsRunning, rowsWaiting, tokensTotal } = await this.#versions.counters();
    const text = metricsText({
      requestsRunning: this.#requestsRunning,
      requestsWaiting: this.#gate.waitingCount,
      rowsRunning,
      rowsWaiting,
      tokensTotal,
      tokensPerSecond: this.#rate.update(tokensTotal),
      versionsHeld: this.#versions.list().length,
    });
    sendText(response, 200, text, { 'content-type': 'text/plain; version=0.0.4; charset=utf-8' });
  }
}

function describe(version: HeldVersion): Record<string, unknown> {
  return {
    id: version.name,
    object: 'model',
    created: Math.floor(version.loadedAtMs / 1000),
    owned_by: 'ratchet',
    root: version.weightDir,
    max_model_len: version.model.config.positionsMax,
    digest: version.digest,
    step: version.step,
  };
}
