import { z } from 'zod';
import { problemsIn } from '../../core/problems-in.ts';
import { type Call, isProtobuf, parsed, type HttpReply, TinkerHttp } from './http.ts';
import { retrieve } from './futures.ts';
import { jsonPass, TinkerModel } from './model.ts';
import { decodeSampleResponse, encodePassRequest } from './proto.ts';
import { number, numbers } from './shapes.ts';
import { isTrouble, TinkerTrouble } from './trouble.ts';
import type { SampleOutput, SamplingParams, ServerModel, TinkerAddress, TinkerLoss } from './types.ts';

export interface ClientOptions {
  /** Time for retries of an unresponsive server before a call fails as `away`. */
  readonly patienceMs?: number;
  readonly say?: (line: string) => void;
  /** Interval between heartbeats of the session. */
  readonly heartbeatMs?: number;
  /** Time that a new model waits for room before its caller is told that the server has none. */
  readonly roomPatienceMs?: number;
}

/** The SDK's interval between heartbeats; servers end sessions after minutes without one. */
const heartbeatDefaultMs = 10_000;
const patienceDefaultMs = 120_000;
/** Models of processes that died are unloaded when their session ends: by default after 5 minutes. */
const roomPatienceDefaultMs = 6 * 60_000;
/** SDK version that servers are told, the one whose protocol this is. */
const sdkVersion = '0.38.0';

const Future = z.looseObject({ request_id: z.coerce.string() });
const Capabilities = z.looseObject({
  supported_models: z.array(z.looseObject({ model_name: z.string().nullish(), max_context_length: z.int().nullish() })),
});
const Sampled = z.looseObject({
  sequences: z.array(
    z.looseObject({
      stop_reason: z.enum(['stop', 'length']),
      tokens: z.array(z.int()),
      logprobs: numbers.nullish(),
    }),
  ),
  prompt_logprobs: z.array(number).nullish(),
});
const Runs = z.looseObject({
  training_runs: z.array(
    z.looseObject({
      training_run_id: z.string(),
      base_model: z.string().nullish(),
      last_request_time: z.string().nullish(),
    }),
  ),
});
const runsPerPage = 100;
/** A server of a year has had thousands of models; ours is among the latest. */
const runsReadMax = 5_000;
const Listed = z.looseObject({ checkpoints: z.array(z.looseObject({ tinker_path: z.string() })) });

/** Sends requests of one model one after the other: some servers refuse one that overtook another. */
export type InTurn = <T>(send: () => Promise<T>) => Promise<T>;
const atOnce: InTurn = (send) => send();

/** One server, and the session that keeps models alive there: heartbeats come from this process while it is open. */
export class TinkerClient {
  readonly http: TinkerHttp;
  readonly #options: Required<ClientOptions>;
  #session: Promise<string> | null = null;
  #timer: ReturnType<typeof setTimeout> | null = null;
  #modelCount = 0;
  #usesProtobuf: boolean;
  /** How servers are told what to sample; learned from their refusals. */
  #samplesBy: 'path' | 'base and path' | 'session' = 'path';
  readonly #samplers = new Map<string, { readonly id: Promise<string>; turns: number }>();
  #samplerCount = 0;

  constructor(address: TinkerAddress, options: ClientOptions = {}) {
    this.#options = {
      patienceMs: options.patienceMs ?? patienceDefaultMs,
      say: options.say ?? (() => undefined),
      heartbeatMs: options.heartbeatMs ?? heartbeatDefaultMs,
      roomPatienceMs: options.roomPatienceMs ?? roomPatienceDefaultMs,
    };
    this.http = new TinkerHttp(address, this.#options);
    this.#usesProtobuf = this.isHosted;
  }

  get roomPatienceMs(): number {
    return this.#options.roomPatienceMs;
  }

  /** The hosted service gives weights file by file, others as an archive or a folder. */
  get isHosted(): boolean {
    return this.http.address.server === 'tinker';
  }

  /** Whether passes and samples travel in protobuf: with the hosted service, and where JSON was refused (415). */
  get usesProtobuf(): boolean {
    return this.#usesProtobuf;
  }

  /** Sends a pass in the server's encoding: a server of one's own is asked in JSON first, and answers 415 if it reads none. */
  async inItsEncoding<T>(send: (asProtobuf: boolean) => Promise<T>): Promise<T> {
    const asProtobuf = this.#usesProtobuf;
    try {
      return await send(asProtobuf);
    } catch (error) {
      if (asProtobuf || !isTrouble(error) || error.status !== 415) throw error;
      this.#usesProtobuf = true; // a refusal by its encoding: nothing was done
      return send(true);
    }
  }

  async capabilities(): Promise<readonly ServerModel[]> {
    const route = '/api/v1/get_server_capabilities';
    const { supported_models: models } = this.read(Capabilities, await this.http.get(route), route);
    return models.flatMap(({ model_name: name, max_context_length: length }) =>
      name == null ? [] : [{ name, contextLength: length ?? null }],
    );
  }

  /**
   * Whether the server knows a loss, without a model: servers check a request's fields before its model. Null if the
   * answer does not show it.
   */
  async knowsLoss(lossFn: TinkerLoss): Promise<boolean | null> {
    const route = '/api/v1/forward_backward';
    const request = { modelId: 'ratchet-asks', seqId: 1, data: [], loss: { lossFn, config: null }, forwardOnly: false };
    const ask = (body: unknown): Promise<HttpReply> => this.http.once('POST', route, { body, mayRepeat: true });
    const inJson = await ask(this.#usesProtobuf ? encodePassRequest(request) : jsonPass(request));
    const { status, bytes } = inJson.status === 415 ? await ask(encodePassRequest(request)) : inJson;
    if (status === 422) return !Buffer.from(bytes).toString('utf8').includes('loss_fn');
    return status === 404 ? true : null;
  }

  /** A new adapter on a base model, in this client's session; `seed` is that of its weights. */
  async createModel(options: {
    readonly baseModel: string;
    readonly rank: number;
    readonly seed: number;
    readonly trained?: { readonly attention: boolean; readonly mlp: boolean; readonly unembedding: boolean };
  }): Promise<TinkerModel> {
    const { baseModel, rank, seed, trained } = options;
    const layers = trained && {
      train_attn: trained.attention,
      train_mlp: trained.mlp,
      train_unembed: trained.unembedding,
    };
    const make = async (): Promise<string> => {
      const session = await this.session();
      const answer = await this.promised(
        '/api/v1/create_model',
        {
          type: 'create_model',
          session_id: session,
          model_seq_id: this.#modelCount++,
          base_model: baseModel,
          lora_config: { rank, seed, ...layers },
        },
        z.looseObject({ model_id: z.string() }),
      );
      return answer.model_id;
    };
    try {
      return new TinkerModel(this, await make());
    } catch (error) {
      if (!isTrouble(error, 'lost')) throw error;
      this.forgetSession(); // the server forgot it; try another one, once
      return new TinkerModel(this, await make());
    }
  }

  /** A model that is there already, by its name. */
  modelOf(id: string): TinkerModel {
    return new TinkerModel(this, id);
  }

  async sample(request: {
    readonly path: string;
    /** Named beside the path for a server that finds its sampler by it. */
    readonly baseModel?: string;
    readonly prompt: readonly number[];
    readonly params: SamplingParams;
    readonly promptLogprobs?: boolean;
    readonly signal?: AbortSignal | undefined;
  }): Promise<SampleOutput> {
    const { path, prompt, params, promptLogprobs = false, signal } = request;
    const body = {
      type: 'sample',
      ...(await this.#place(path, request.baseModel)),
      prompt: { chunks: [{ type: 'encoded_text', tokens: prompt }] },
      num_samples: 1,
      sampling_params: params,
      ...(promptLogprobs ? { prompt_logprobs: true } : {}),
    };
    const route = '/api/v1/asample';
    const asProtobuf = this.usesProtobuf;
    let reply: HttpReply;
    try {
      reply = await this.future(route, { body, mayRepeat: true, signal }, { asProtobuf });
    } catch (error) {
      if (this.#learnsPlace(error, path, body)) return this.sample(request);
      throw error;
    }
    if (isProtobuf(reply)) return decodeSampleResponse(reply.bytes);
    const { sequences, prompt_logprobs: scored } = this.read(Sampled, reply, route);
    return {
      sequences: sequences.map(({ stop_reason, tokens, logprobs }) => ({
        stopReason: stop_reason,
        tokens,
        logprobs: logprobs ?? [],
      })),
      promptLogprobs: scored == null ? null : aligned(scored, prompt.length),
    };
  }

  /** How a request names what is sampled: by its path, beside the base model where a server wants that, or by a session. */
  async #place(path: string, baseModel: string | undefined): Promise<Readonly<Record<string, unknown>>> {
    if (this.#samplesBy === 'path') return { model_path: path };
    if (this.#samplesBy === 'base and path') return { base_model: baseModel, model_path: path };
    const opened = this.#samplers.get(path) ?? { id: this.#openSampler(path), turns: 0 };
    this.#samplers.set(path, opened);
    opened.id.catch(() => this.#samplers.delete(path));
    return { sampling_session_id: await opened.id, seq_id: ++opened.turns };
  }

  /** Whether a refusal says that the place of a sample has to be named in another way; then it is from now on. */
  #learnsPlace(error: unknown, path: string, sent: Readonly<Record<string, unknown>>): boolean {
    if (!isTrouble(error, 'refused', 'lost', 'missing')) return false;
    if (sent['sampling_session_id'] !== undefined) {
      // A session is lost with the server's memory: another one is opened, once for each that is lost.
      const isLost = /session .{0,100}not found/i.test(error.message) && sent['seq_id'] !== 1;
      if (isLost) this.#samplers.delete(path);
      return isLost;
    }
    const wanted = /base_model is required/.test(error.message)
      ? 'base and path'
      : /session none not found/i.test(error.message)
        ? 'session'
        : null;
    if (wanted === null || (wanted === 'base and path' && 'base_model' in sent)) return false;
    this.#samplesBy = wanted;
    return true;
  }

  async #openSampler(path: string): Promise<string> {
    const route = '/api/v1/create_sampling_session';
    const session = await this.session();
    const body = {
      type: 'create_sampling_session',
      session_id: session,
      sampling_session_seq_id: this.#samplerCount++,
      model_path: path,
    };
    const reply = await this.http.post(route, { body, mayRepeat: true });
    return this.read(z.looseObject({ sampling_session_id: z.string() }), reply, route).sampling_session_id;
  }

  /** Paths of a model's complete checkpoints. */
  async checkpointsOf(modelId: string): Promise<readonly string[]> {
    const route = `/api/v1/training_runs/${encodeURIComponent(modelId)}/checkpoints`;
    return this.read(Listed, await this.http.get(route), route).checkpoints.map((found) => found.tinker_path);
  }

  /** Names of models that the server has or had on this base, the latest first. */
  async modelsOn(baseModel: string): Promise<readonly string[]> {
    const found: { id: string; at: string }[] = [];
    for (let offset = 0; offset < runsReadMax; offset += runsPerPage) {
      const route = `/api/v1/training_runs?limit=${runsPerPage}&offset=${offset}`;
      const { training_runs: runs } = this.read(Runs, await this.http.get(route), route);
      found.push(
        ...runs
          .filter((run) => run.base_model === baseModel)
          .map((run) => ({ id: run.training_run_id, at: run.last_request_time ?? '' })),
      );
      if (runs.length < runsPerPage) break;
    }
    return found.toSorted((a, b) => (a.at < b.at ? 1 : -1)).map(({ id }) => id);
  }

  /** Opened when it is first needed. */
  session(): Promise<string> {
    this.#session ??= this.#openSession().catch((error: unknown) => {
      this.#session = null;
      throw error;
    });
    return this.#session;
  }

  forgetSession(): void {
    if (this.#timer) clearTimeout(this.#timer);
    this.#timer = null;
    this.#session = null;
  }

  /** Ends the session silently: the server unloads its models after a while. */
  close(): void {
    this.forgetSession();
  }

  /** The checked JSON of a request's promise. */
  async promised<T>(
    route: string,
    body: unknown,
    shape: z.ZodType<T>,
    { mayRepeat = false, inTurn = atOnce }: { readonly mayRepeat?: boolean; readonly inTurn?: InTurn } = {},
  ): Promise<T> {
    return this.read(shape, await this.future(route, { body, mayRepeat }, { inTurn }), route);
  }

  /** Sends a request, and waits for its promise; a lost promise leads to a repeated request if that is harmless. */
  async future(
    route: string,
    call: Call,
    { asProtobuf = false, inTurn = atOnce }: { readonly asProtobuf?: boolean; readonly inTurn?: InTurn } = {},
  ): Promise<HttpReply> {
    const { patienceMs, say } = this.#options;
    const { signal } = call;
    for (let isAgain = false; ; isAgain = true) {
      const promise = await inTurn(() => this.http.post(route, call));
      const { request_id: requestId, ...rest } = this.read(Future, promise, route);
      try {
        const reply = await retrieve(this.http, requestId, { asProtobuf, signal, patienceMs, say });
        return route.endsWith('create_model') ? withDefaults(reply, rest) : reply;
      } catch (error) {
        if (isAgain || !call.mayRepeat || !isTrouble(error, 'lost') || error.status !== 410) throw error;
      }
    }
  }

  read<T>(shape: z.ZodType<T>, reply: HttpReply, route: string): T {
    const result = shape.safeParse(parsed(reply, this.http.address.url + route));
    if (result.success) return result.data;
    const found = problemsIn(result.error).slice(0, 400);
    throw new TinkerTrouble(
      'failed',
      `${this.http.address.url}${route} answered in other words than expected: ${found}`,
    );
  }

  async #openSession(): Promise<string> {
    const route = '/api/v1/create_session';
    const body = { type: 'create_session', tags: ['ratchet'], user_metadata: null, sdk_version: sdkVersion };
    const reply = await this.http.post(route, { body, mayRepeat: true });
    const { session_id: session } = this.read(z.looseObject({ session_id: z.string() }), reply, route);
    this.#beatSoon(session);
    return session;
  }

  /** Each heartbeat begins after the answer to the one before: a slow server does not get two at once. */
  #beatSoon(session: string): void {
    const timer = setTimeout(() => {
      void this.#beat(session).then(() => {
        if (this.#timer === timer) this.#beatSoon(session);
      });
    }, this.#options.heartbeatMs);
    this.#timer = timer.unref();
  }

  /** A failed heartbeat does not matter: the next one comes soon, and the loss of a model shows itself. */
  async #beat(session: string): Promise<void> {
    const call = { body: { type: 'session_heartbeat', session_id: session }, mayRepeat: true, timeoutMs: 10_000 };
    const reply = await this.http.once('POST', '/api/v1/session_heartbeat', call).catch(() => null);
    const isOver = reply?.status === 410 || reply?.status === 404;
    if (isOver && (await this.#session) === session) this.forgetSession();
  }
}

/** SkyRL leaves the first token out, for which there is no logprob; the hosted service gives null there. */
function aligned(scored: readonly (number | null)[], length: number): (number | null)[] {
  return scored.length === length - 1 ? [null, ...scored] : [...scored];
}

/** The request's direct answer, overridden by that of its promise: servers name the model in one or the other. */
function withDefaults(reply: HttpReply, first: Readonly<Record<string, unknown>>): HttpReply {
  const later = parsed(reply, 'create_model') as Record<string, unknown>;
  try {
    return { ...reply, bytes: Buffer.from(JSON.stringify({ ...first, ...later })) };
  } catch (cause) {
    throw new TinkerTrouble(
      'failed',
      'create_model: expected the name of a model, got JSON that is nested too deeply.',
      {
        cause,
      },
    );
  }
}
