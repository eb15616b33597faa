import type { IncomingMessage, ServerResponse } from 'node:http';
import { policyVersionsHeld } from '../../core/limits.ts';
import { engineFingerprint } from '../fingerprint.ts';
import { Admission, type RequestBudget } from './generation/admission.ts';
import { Gate } from './gate.ts';
import { Generating } from './generation/generating.ts';
import { HttpError } from './http-error.ts';
import { readJsonBody, sendError, sendJson, sendText } from './http.ts';
import { shortened } from './json.ts';
import type { SessionOptions } from '../onnx/session.ts';
import type { SpeechParsers } from '../speech/speech.ts';
import { metricsText, TokenRate } from './metrics.ts';
import type { PolicyServerOptions } from './policy-server.ts';
import { detokenize, tokenize } from './generation/prompts.ts';
import { RefusalLog } from './refusal-log.ts';
import { type HeldVersion, PolicyVersions } from './policy-versions.ts';
import {
  DetokenizeRequest,
  HoldVersionRequest,
  parseBody,
  parseChat,
  parseChatTokens,
  parseCompletion,
  parseGenerate,
  parseHonoured,
  ReleaseVersionRequest,
  TokenizeRequest,
  UpdateWeightsRequest,
} from './requests.ts';
import { type Generation, completionOf, chatOf, generateOf } from './generation/generations.ts';

type Handler = (request: IncomingMessage, response: ServerResponse, budget: RequestBudget) => void | Promise<void>;

/** Routes that reveal nothing about the models and need no key. */
const openRoutes = new Set(['/health', '/liveness', '/ready', '/ping']);

export class Routes {
  readonly #versions: PolicyVersions;
  readonly #parsers: Partial<SpeechParsers>;
  readonly #admission = new Admission();
  readonly #generationRate = new TokenRate();
  readonly #promptRate = new TokenRate();
  readonly #generating: Generating;
  readonly #session: SessionOptions;
  readonly #gate: Gate;
  readonly #log: (line: string) => void;
  readonly #refusals: RefusalLog;
  #requestsTotal = 0;
  #requestsRefused = 0;

  readonly #handlers: Readonly<Record<string, Handler>> = {
    'GET /health': (_, response) => sendJson(response, 200, { status: this.#generating.isPaused ? 'paused' : 'ok' }),
    'GET /liveness': (_, response) => sendJson(response, 200, { status: 'ok' }),
    'GET /ready': (_, response) => {
      const because = this.#whyNotReady();
      if (because === null) sendJson(response, 200, { status: 'ready' });
      else sendJson(response, 503, { status: 'not ready', because });
    },
    'GET /ping': (_, response) => sendJson(response, 200, {}),
    'POST /ping': (_, response) => sendJson(response, 200, {}),
    'GET /version': async (_, response) => sendJson(response, 200, await this.#describeServer()),
    'GET /metrics': (_, response) => this.#sendMetrics(response),
    'GET /v1/models': (_, response) =>
      sendJson(response, 200, { object: 'list', data: this.#versions.list().map(describe) }),
    'POST /v1/completions': this.#generates((body) => completionOf(parseCompletion(body))),
    'POST /v1/chat/completions': this.#generates((body) => chatOf(parseChat(body), this.#parsers)),
    'POST /v1/chat/completions/tokens': this.#generates((body) => chatOf(parseChatTokens(body), this.#parsers)),
    'POST /inference/v1/generate': this.#generates((body) => generateOf(parseGenerate(body))),
    'POST /tokenize': async (request, response, budget) => {
      const body = parseHonoured(TokenizeRequest, await readJsonBody(request, budget));
      const answer = (version: HeldVersion): Promise<unknown> => Promise.resolve(tokenize(version, body));
      sendJson(response, 200, await this.#versions.use(body.model ?? null, answer));
    },
    'POST /detokenize': async (request, response, budget) => {
      const body = parseHonoured(DetokenizeRequest, await readJsonBody(request, budget));
      const answer = (version: HeldVersion): Promise<unknown> => Promise.resolve(detokenize(version, body.tokens));
      sendJson(response, 200, await this.#versions.use(body.model ?? null, answer));
    },
    'POST /pause': (_, response) => {
      this.#generating.pause();
      sendJson(response, 200, { status: 'paused' });
    },
    'POST /resume': (_, response) => {
      this.#generating.resume();
      sendJson(response, 200, { status: 'ok' });
    },
    'POST /update_weights': async (request, response, budget) => {
      const body = parseBody(UpdateWeightsRequest, await readJsonBody(request, budget));
      const startedAt = performance.now();
      this.#log(`loading ${shortened(body.name)} from ${shortened(body.weight_dir, 500)}`);
      const version = describe(await this.#versions.load(body));
      this.#log(`holding ${shortened(body.name)}, loaded in ${Math.round(performance.now() - startedAt)} ms`);
      sendJson(response, 200, { status: 'ok', ...version });
    },
    'POST /hold_version': async (request, response, budget) => {
      const { name, holder, seconds } = parseBody(HoldVersionRequest, await readJsonBody(request, budget));
      sendJson(response, 200, { status: 'ok', ...describe(this.#versions.keep(name, holder, seconds)) });
    },
    'POST /release_version': async (request, response, budget) => {
      const { name, holder } = parseBody(ReleaseVersionRequest, await readJsonBody(request, budget));
      await this.#versions.release(name, holder);
      sendJson(response, 200, { status: 'ok' });
    },
  };

  constructor(options: PolicyServerOptions) {
    const { threads, provider = 'cpu', allowRoots, maxVersions = policyVersionsHeld, memoryGb = null } = options;
    this.#log = options.log ?? (() => undefined);
    this.#versions = new PolicyVersions({ threads, provider, allowRoots, maxVersions, memoryGb }, this.#log);
    this.#gate = new Gate(options.key);
    this.#parsers = options.parsers ?? {};
    this.#session = { threads, provider };
    this.#generating = new Generating(this.#versions, this.#session);
    this.#refusals = new RefusalLog(this.#log);
  }

  async handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    this.#requestsTotal++;
    try {
      const path = (request.url ?? '/').split('?', 1)[0]!;
      this.#authorize(path, request);
      // Sent even if the request is refused for load.
      if (path === '/health') response.setHeaders(new Map(Object.entries(this.#gate.proof(request))));
      const handler = this.#handlerOf(request.method ?? 'GET', path);
      await this.#admission.hold(async (budget) => handler(request, response, budget));
    } catch (error) {
      this.#requestsRefused++;
      this.#refusals.add(request.method, request.url, error);
      sendError(response, error);
    }
  }

  async close(): Promise<void> {
    await this.#generating.close();
    await this.#versions.close();
  }

  /** Whether a request for a completion would be answered now: for what sends requests to one of several servers. */
  #whyNotReady(): string | null {
    if (this.#versions.list().length === 0) return 'it holds no weights';
    return this.#generating.isPaused ? 'it is paused' : null;
  }

  #handlerOf(method: string, path: string): Handler {
    const handler = this.#handlers[`${method} ${path}`];
    if (handler) return handler;
    const allowed = Object.keys(this.#handlers).filter((route) => route.endsWith(` ${path}`));
    if (allowed.length === 0) {
      throw new HttpError(404, `There is no ${shortened(path)}. Routes: ${Object.keys(this.#handlers).join(', ')}.`);
    }
    throw new HttpError(405, `${path} answers to ${allowed.join()}, not ${method}.`);
  }

  #authorize(path: string, request: IncomingMessage): void {
    if (openRoutes.has(path)) return;
    const refusal = this.#gate.refuse(request.headers);
    if (refusal !== null) throw new HttpError(refusal.status, refusal.message);
  }

  #generates(parse: (body: unknown) => Generation): Handler {
    return async (request, response, budget) => {
      const generation = parse(await readJsonBody(request, budget));
      budget.takeRequest();
      await this.#generating.answer(generation, { request, response, budget });
    };
  }

  async #describeServer(): Promise<Record<string, unknown>> {
    const fingerprint = await engineFingerprint(this.#session);
    return { version: fingerprint.runtime, engine: 'ratchet', ...fingerprint };
  }

  async #sendMetrics(response: ServerResponse): Promise<void> {
    const sampler = this.#versions.counters();
    const text = metricsText({
      ...this.#generating.figures(),
      requestsTotal: this.#requestsTotal,
      requestsRefused: this.#requestsRefused,
      sampler,
      generationTokensPerSecond: this.#generationRate.update(sampler.tokensTotal),
      promptTokensPerSecond: this.#promptRate.update(sampler.promptTokensTotal),
      versionsHeld: this.#versions.list().length,
      weightBytes: this.#versions.weightBytes,
      memoryBytesMax: this.#versions.budgetBytes ?? 0,
      memoryBytes: process.memoryUsage.rss(),
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
