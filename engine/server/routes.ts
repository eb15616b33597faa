import { timingSafeEqual } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { policyVersionsHeld } from '../../core/limits.ts';
import { engineFingerprint } from '../fingerprint.ts';
import { waitingRequestsMax } from '../limits.ts';
import { Admission, type Purse } from './admission.ts';
import { chatForm, completionForm, generateForm } from './answers.ts';
import { type AnswerForm, answerStream, answerWhole } from './generation.ts';
import { HttpError } from './http-error.ts';
import { readJsonBody, sendError, sendJson, sendText } from './http.ts';
import { shortened } from './json.ts';
import type { SessionOptions } from '../onnx/session.ts';
import { Latencies } from './latencies.ts';
import { refuseForeignSites } from './loopback.ts';
import { metricsText, TokenRate } from './metrics.ts';
import { PauseGate } from './pause-gate.ts';
import { type Plan, planSampling } from './plan.ts';
import type { PolicyServerOptions } from './policy-server.ts';
import { type PromptScores, PromptScorer } from './prompt-scores.ts';
import { detokenize, encodePrompts, renderPrompt, tokenize } from './prompts.ts';
import { RefusalLog } from './refusal-log.ts';
import { type HeldVersion, PolicyVersions } from './policy-versions.ts';
import {
  type ChatCompletionRequest,
  type CompletionRequest,
  DetokenizeRequest,
  type GenerateRequest,
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

type Handler = (request: IncomingMessage, response: ServerResponse, purse: Purse) => void | Promise<void>;

/** A request that generates, parsed: which version it is for, and how it becomes a plan and an answer. */
interface Generation {
  /** null = the only version held. */
  readonly model: string | null;
  readonly stream: { readonly includeUsage: boolean } | null;
  readonly plan: (version: HeldVersion, signal: AbortSignal, purse: Purse) => Promise<Plan>;
  readonly form: (plan: Plan, promptScores: readonly PromptScores[] | null) => AnswerForm;
  /** Log probabilities of its prompts are wanted. */
  readonly scoresPrompts?: boolean;
}

/** Routes that tell nothing about the models and need no key. */
const openRoutes = new Set(['/health', '/liveness', '/ping']);

/** What OpenAI's API gives when max_tokens is left out of a completion. */
const completionMaxTokensDefault = 16;

/** Every route and what it does. */
export class Routes {
  readonly #versions: PolicyVersions;
  readonly #gate = new PauseGate(waitingRequestsMax);
  readonly #admission = new Admission();
  readonly #generationRate = new TokenRate();
  readonly #promptRate = new TokenRate();
  readonly #latencies = new Latencies();
  readonly #scorer: PromptScorer;
  readonly #session: SessionOptions;
  readonly #apiKey: string | undefined;
  readonly #log: (line: string) => void;
  readonly #refusals: RefusalLog;
  readonly #running = new Set<AbortController>();
  #requestsTotal = 0;
  #requestsRefused = 0;

  readonly #handlers: Readonly<Record<string, Handler>> = {
    'GET /health': (_, response) => sendJson(response, 200, { status: this.#gate.isPaused ? 'paused' : 'ok' }),
    'GET /liveness': (_, response) => sendJson(response, 200, { status: 'ok' }),
    'GET /ping': (_, response) => sendJson(response, 200, {}),
    'POST /ping': (_, response) => sendJson(response, 200, {}),
    'GET /version': async (_, response) => sendJson(response, 200, await this.#describeServer()),
    'GET /metrics': (_, response) => this.#sendMetrics(response),
    'GET /v1/models': (_, response) =>
      sendJson(response, 200, { object: 'list', data: this.#versions.list().map(describe) }),
    'POST /v1/completions': this.#generating((body) => completionOf(parseCompletion(body))),
    'POST /v1/chat/completions': this.#generating((body) => chatOf(parseChat(body))),
    'POST /v1/chat/completions/tokens': this.#generating((body) => chatOf(parseChatTokens(body))),
    'POST /inference/v1/generate': this.#generating((body) => generateOf(parseGenerate(body))),
    'POST /tokenize': async (request, response, purse) => {
      const body = parseHonoured(TokenizeRequest, await readJsonBody(request, purse));
      const answer = (version: HeldVersion): Promise<unknown> => Promise.resolve(tokenize(version, body));
      sendJson(response, 200, await this.#versions.use(body.model ?? null, answer));
    },
    'POST /detokenize': async (request, response, purse) => {
      const body = parseHonoured(DetokenizeRequest, await readJsonBody(request, purse));
      const answer = (version: HeldVersion): Promise<unknown> => Promise.resolve(detokenize(version, body.tokens));
      sendJson(response, 200, await this.#versions.use(body.model ?? null, answer));
    },
    'POST /pause': (_, response) => {
      this.#gate.pause();
      sendJson(response, 200, { status: 'paused' });
    },
    'POST /resume': (_, response) => {
      this.#gate.resume();
      sendJson(response, 200, { status: 'ok' });
    },
    'POST /update_weights': async (request, response, purse) => {
      const body = parseBody(UpdateWeightsRequest, await readJsonBody(request, purse));
      const startedAt = performance.now();
      this.#log(`loading ${shortened(body.name)} from ${shortened(body.weight_dir, 500)}`);
      const version = describe(await this.#versions.load(body));
      this.#log(`holding ${shortened(body.name)}, loaded in ${Math.round(performance.now() - startedAt)} ms`);
      sendJson(response, 200, { status: 'ok', ...version });
    },
    'POST /hold_version': async (request, response, purse) => {
      const { name, holder, seconds } = parseBody(HoldVersionRequest, await readJsonBody(request, purse));
      sendJson(response, 200, { status: 'ok', ...describe(this.#versions.keep(name, holder, seconds)) });
    },
    'POST /release_version': async (request, response, purse) => {
      const { name, holder } = parseBody(ReleaseVersionRequest, await readJsonBody(request, purse));
      await this.#versions.release(name, holder);
      sendJson(response, 200, { status: 'ok' });
    },
  };

  constructor(options: PolicyServerOptions) {
    const { threads, provider = 'cpu', allowRoots, maxVersions = policyVersionsHeld } = options;
    this.#versions = new PolicyVersions({ threads, provider, allowRoots, maxVersions });
    this.#apiKey = options.apiKey;
    this.#session = { threads, provider };
    this.#scorer = new PromptScorer(this.#session);
    this.#log = options.log ?? (() => undefined);
    this.#refusals = new RefusalLog(this.#log);
  }

  async handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    this.#requestsTotal++;
    try {
      const path = (request.url ?? '/').split('?', 1)[0]!;
      this.#authorize(path, request);
      const handler = this.#handlerOf(request.method ?? 'GET', path);
      await this.#admission.hold(async (purse) => handler(request, response, purse));
    } catch (error) {
      this.#requestsRefused++;
      this.#refusals.add(request.method, request.url, error);
      sendError(response, error);
    }
  }

  async close(): Promise<void> {
    for (const controller of this.#running) controller.abort(new HttpError(503, 'The server is closing.'));
    this.#gate.resume();
    await this.#scorer.close();
    await this.#versions.close();
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
    if (this.#apiKey === undefined) return refuseForeignSites(request.headers);
    const given = Buffer.from(request.headers.authorization ?? '');
    const expected = Buffer.from(`Bearer ${this.#apiKey}`);
    if (given.length === expected.length && timingSafeEqual(given, expected)) return;
    throw new HttpError(401, 'Expected the header "Authorization: Bearer KEY" with this server\'s key.');
  }

  #generating(parse: (body: unknown) => Generation): Handler {
    return async (request, response, purse) => {
      const { model, stream, plan, form, scoresPrompts = false } = parse(await readJsonBody(request, purse));
      purse.takeRequest();
      await this.#whileConnected(request, response, async (controller) => {
        const { signal } = controller;
        await this.#gate.pass(signal);
        await this.#versions.use(model, async (version) => {
          const planned = await plan(version, signal, purse);
          const parts = { latencies: this.#latencies, controller };
          if (stream) return answerStream(planned, form(planned, null), { ...parts, ...stream, response });
          const scores = scoresPrompts ? await this.#scorer.score(version, planned.prompts, signal) : null;
          sendJson(response, 200, await answerWhole(planned, form(planned, scores), parts));
        });
      });
    };
  }

  /** Runs `work` with a controller that aborts when the client goes away. */
  async #whileConnected(
    request: IncomingMessage,
    response: ServerResponse,
    work: (controller: AbortController) => Promise<void>,
  ): Promise<void> {
    // One controller for all: signals combined by AbortSignal.any are never collected by Node 20 once listened to.
    const controller = new AbortController();
    const giveUp = (): void => controller.abort(new HttpError(499, 'The client closed the connection.'));
    // A pipelined response hears of its connection's end only once it is its turn, so the connection is asked itself.
    const { socket } = request;
    if (socket.destroyed) giveUp();
    socket.once('close', giveUp);
    response.once('close', giveUp);
    this.#running.add(controller);
    try {
      await work(controller);
    } finally {
      this.#running.delete(controller);
      socket.off('close', giveUp);
    }
  }

  async #describeServer(): Promise<Record<string, unknown>> {
    const fingerprint = await engineFingerprint(this.#session);
    return { version: fingerprint.runtime, engine: 'ratchet', ...fingerprint };
  }

  async #sendMetrics(response: ServerResponse): Promise<void> {
    const sampler = this.#versions.counters();
    const text = metricsText({
      requestsRunning: this.#running.size - this.#gate.waitingCount,
      requestsWaiting: this.#gate.waitingCount,
      requestsTotal: this.#requestsTotal,
      requestsRefused: this.#requestsRefused,
      sampler,
      generationTokensPerSecond: this.#generationRate.update(sampler.tokensTotal),
      promptTokensPerSecond: this.#promptRate.update(sampler.promptTokensTotal),
      versionsHeld: this.#versions.list().length,
      latencies: this.#latencies,
    });
    sendText(response, 200, text, { 'content-type': 'text/plain; version=0.0.4; charset=utf-8' });
  }
}

function completionOf(request: CompletionRequest): Generation {
  return {
    model: request.model,
    stream: streamOf(request),
    plan: async (version, signal, purse) =>
      planSampling({
        version,
        prompts: await encodePrompts(version, request.prompt, signal),
        fields: request,
        maxTokens: { asked: request.max_tokens ?? null, otherwise: completionMaxTokensDefault },
        isStream: request.stream === true,
        purse,
      }),
    form: (plan, scores) => completionForm(plan, request, scores),
    scoresPrompts: request.prompt_logprobs != null,
  };
}

function chatOf(request: ChatCompletionRequest): Generation {
  const hasTools = (request.tools?.length ?? 0) > 0 && request.tool_choice !== 'none';
  const promptOf = (version: HeldVersion): number[] =>
    request.tokens ?? renderPrompt(version, { ...request, messages: request.messages! });
  return {
    model: request.model,
    stream: streamOf(request),
    plan: (version, _, purse) =>
      Promise.resolve(
        planSampling({
          version,
          prompts: [promptOf(version)],
          fields: request,
          maxTokens: { asked: request.max_completion_tokens ?? request.max_tokens ?? null, otherwise: null },
          isStream: request.stream === true,
          tools: { readsToolCalls: hasTools, singleToolCall: request.parallel_tool_calls === false },
          purse,
        }),
      ),
    form: (plan) => chatForm(plan, request),
  };
}

function generateOf(request: GenerateRequest): Generation {
  return {
    model: request.model ?? null,
    stream: streamOf(request),
    plan: (version, _, purse) =>
      Promise.resolve(
        planSampling({
          version,
          prompts: [request.token_ids],
          fields: request.sampling_params,
          maxTokens: { asked: request.sampling_params.max_tokens ?? null, otherwise: null },
          isStream: request.stream === true,
          purse,
        }),
      ),
    form: (plan) => generateForm(plan, request),
  };
}

function streamOf(request: Pick<CompletionRequest, 'stream' | 'stream_options'>): Generation['stream'] {
  return request.stream ? { includeUsage: request.stream_options?.include_usage === true } : null;
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
