import { z } from 'zod';
import { problemsIn } from '../../core/problems-in.ts';
import { type Call, parsed, type HttpReply, TinkerHttp } from './http.ts';
import { retrieve } from './futures.ts';
import { decodePassOutput, decodeSampleResponse, encodePassRequest } from './proto.ts';
import { isTrouble, TinkerTrouble } from './trouble.ts';
import type {
  AdamParams,
  Datum,
  LossCall,
  PassOutput,
  SampleOutput,
  SamplingParams,
  ServerModel,
  TinkerAddress,
} from './types.ts';

export interface ClientOptions {
  /** Time for retries of an unresponsive server before a call fails as `away`. */
  readonly patienceMs?: number;
  readonly say?: (line: string) => void;
  /** Interval between heartbeats of the session. */
  readonly heartbeatMs?: number;
}

/** The SDK's interval between heartbeats; servers end sessions after minutes without one. */
const heartbeatDefaultMs = 10_000;
const patienceDefaultMs = 120_000;
/** SDK version that servers are told, the one whose protocol this is. */
const sdkVersion = '0.38.0';

const Future = z.looseObject({ request_id: z.coerce.string() });
const Capabilities = z.looseObject({
  supported_models: z.array(z.looseObject({ model_name: z.string().nullish(), max_context_length: z.int().nullish() })),
});
/** Infinite values stay; NaN arrives as null, and becomes NaN again. */
const number = z.custom<number | null>((value) => typeof value === 'number' || value === null, 'expected a number');
const numbers = z.array(number.transform((value) => value ?? Number.NaN));
const metrics = z.record(
  z.string(),
  number.transform((value) => value ?? Number.NaN),
);
const tensor = z.looseObject({ data: numbers });
const Pass = z.looseObject({
  loss_fn_outputs: z.array(z.record(z.string(), tensor)),
  metrics: metrics.default({}),
});
const Step = z.looseObject({ metrics: metrics.nullish() });
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
const Saved = z.looseObject({ path: z.string() });
const Listed = z.looseObject({ checkpoints: z.array(z.looseObject({ tinker_path: z.string() })) });

/** One server, and the session that keeps models alive there: heartbeats come from this process while it is open. */
export class TinkerClient {
  readonly http: TinkerHttp;
  readonly #options: Required<ClientOptions>;
  #session: Promise<string> | null = null;
  #timer: ReturnType<typeof setTimeout> | null = null;
  #modelCount = 0;

  constructor(address: TinkerAddress, options: ClientOptions = {}) {
    this.#options = {
      patienceMs: options.patienceMs ?? patienceDefaultMs,
      say: options.say ?? (() => undefined),
      heartbeatMs: options.heartbeatMs ?? heartbeatDefaultMs,
    };
    this.http = new TinkerHttp(address, this.#options);
  }

  get usesProtobuf(): boolean {
    return this.http.address.server === 'tinker';
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
  async knowsLoss(lossFn: string): Promise<boolean | null> {
    const route = '/api/v1/forward_backward';
    const body = { model_id: 'ratchet-asks', seq_id: 1, forward_backward_input: { data: [], loss_fn: lossFn } };
    const { status, bytes } = await this.http.once('POST', route, { body, mayRepeat: true });
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

  async sample(request: {
    readonly path: string;
    readonly prompt: readonly number[];
    readonly params: SamplingParams;
    readonly promptLogprobs?: boolean;
    readonly signal?: AbortSignal | undefined;
  }): Promise<SampleOutput> {
    const { path, prompt, params, promptLogprobs = false, signal } = request;
    const body = {
      type: 'sample',
      model_path: path,
      prompt: { chunks: [{ type: 'encoded_text', tokens: prompt }] },
      num_samples: 1,
      sampling_params: params,
      ...(promptLogprobs ? { prompt_logprobs: true } : {}),
    };
    const route = '/api/v1/asample';
    const reply = await this.future(route, { body, mayRepeat: true, signal }, { asProtobuf: this.usesProtobuf });
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

  /** Paths of a model's complete checkpoints. */
  async checkpointsOf(modelId: string): Promise<readonly string[]> {
    const route = `/api/v1/training_runs/${encodeURIComponent(modelId)}/checkpoints`;
    return this.read(Listed, await this.http.get(route), route).checkpoints.map((found) => found.tinker_path);
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
  async promised<T>(route: string, body: unknown, shape: z.ZodType<T>, mayRepeat = false): Promise<T> {
    return this.read(shape, await this.future(route, { body, mayRepeat }), route);
  }

  /** Sends a request, and waits for its promise; a lost promise leads to a repeated request if that is harmless. */
  async future(route: string, call: Call, { asProtobuf = false } = {}): Promise<HttpReply> {
    const { patienceMs, say } = this.#options;
    const { signal } = call;
    for (let isAgain = false; ; isAgain = true) {
      const promise = await this.http.post(route, call);
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

/** A model in training. Its requests are executed in the order in which they are sent. */
export class TinkerModel {
  readonly id: string;
  readonly #client: TinkerClient;
  #sequence = 0;

  constructor(client: TinkerClient, id: string) {
    this.#client = client;
    this.id = id;
  }

  /** Gradients of several calls add up until the next {@link optimStep}. */
  async forwardBackward(data: readonly Datum[], loss: LossCall): Promise<PassOutput> {
    return this.#pass(data, loss, false);
  }

  /** Logprobs only; changes nothing. */
  async forward(data: readonly Datum[]): Promise<PassOutput> {
    return this.#pass(data, { lossFn: 'cross_entropy', config: null }, true);
  }

  /** Never sent twice: servers may apply it twice. If its outcome is unknown the model is `lost`. */
  async optimStep(adam: AdamParams): Promise<Readonly<Record<string, number>>> {
    const body = { type: 'optim_step', model_id: this.id, seq_id: this.#next(), adam_params: adam };
    return (await this.#client.promised('/api/v1/optim_step', body, Step)).metrics ?? {};
  }

  /** Weights and optimizer, as a checkpoint for further training. Returns its path. */
  async saveWeights(name: string, ttlS: number | null): Promise<string> {
    return this.#save('/api/v1/save_weights', { type: 'save_weights', path: name }, ttlS);
  }

  /** Weights for sampling. Returns their path. */
  async saveForSampler(name: string, ttlS: number | null): Promise<string> {
    const body = { type: 'save_weights_for_sampler', path: name };
    return this.#save('/api/v1/save_weights_for_sampler', body, ttlS);
  }

  /** A copy for a download, file by file (hosted). Returns its path. */
  async saveExternal(name: string, ttlS: number): Promise<string> {
    return this.#save('/api/v1/save_weights_external', { type: 'save_weights_external', path: name }, ttlS);
  }

  /** Only as the first request of a new model. */
  async loadWeights(path: string, { optimizer }: { readonly optimizer: boolean }): Promise<void> {
    const body = { type: 'load_weights', model_id: this.id, seq_id: this.#next(), path, optimizer };
    await this.#client.promised('/api/v1/load_weights', body, z.looseObject({}));
  }

  /** Frees its room; failures are ignored. */
  async unload(): Promise<void> {
    const call = { body: { type: 'unload_model', model_id: this.id }, mayRepeat: true, timeoutMs: 10_000 };
    await this.#client.http.once('POST', '/api/v1/unload_model', call).catch(() => undefined);
  }

  async #pass(data: readonly Datum[], loss: LossCall, forwardOnly: boolean): Promise<PassOutput> {
    const seqId = this.#next();
    const asProtobuf = this.#client.usesProtobuf;
    const route = forwardOnly && !asProtobuf ? '/api/v1/forward' : '/api/v1/forward_backward';
    const body = asProtobuf
      ? encodePassRequest({ modelId: this.id, seqId, data, loss, forwardOnly })
      : jsonPass({ modelId: this.id, seqId, data, loss, forwardOnly });
    const reply = await this.#client.future(route, { body, mayRepeat: forwardOnly }, { asProtobuf });
    if (isProtobuf(reply)) return decodePassOutput(reply.bytes);
    const { loss_fn_outputs: outputs, metrics } = this.#client.read(Pass, reply, route);
    return { logprobs: outputs.map((output) => output['logprobs']?.data ?? []), metrics };
  }

  /** A name taken by our own earlier request means success. */
  async #save(
    route: string,
    wish: { readonly type: string; readonly path: string },
    ttlS: number | null,
  ): Promise<string> {
    const body = { ...wish, model_id: this.id, seq_id: this.#next(), ...(ttlS === null ? {} : { ttl_seconds: ttlS }) };
    try {
      return (await this.#client.promised(route, body, Saved, true)).path;
    } catch (error) {
      if (!isTrouble(error) || error.status !== 409) throw error;
      const kind = route.endsWith('save_weights')
        ? '/weights/'
        : route.endsWith('sampler')
          ? '/sampler_weights/'
          : '/external_weights/';
      const paths = await this.#client.checkpointsOf(this.id);
      const found = paths.find((path) => path.endsWith(kind + wish.path));
      if (found !== undefined) return found;
      throw new TinkerTrouble('lost', `${error.message}, and no such checkpoint is whole.`, {
        status: 409,
        cause: error,
      });
    }
  }

  #next(): number {
    return ++this.#sequence;
  }
}

function jsonPass(request: Parameters<typeof encodePassRequest>[0]): unknown {
  const { modelId, seqId, data, loss, forwardOnly } = request;
  const input = {
    data: data.map(({ tokens, inputs }) => ({
      model_input: { chunks: [{ type: 'encoded_text', tokens }] },
      loss_fn_inputs: Object.fromEntries(
        Object.entries(inputs).map(([name, { dtype, data: values }]) => [
          name,
          { data: values, dtype, shape: [values.length] },
        ]),
      ),
    })),
    loss_fn: loss.lossFn,
    ...(loss.config === null ? {} : { loss_fn_config: loss.config }),
  };
  return {
    model_id: modelId,
    seq_id: seqId,
    ...(forwardOnly ? { forward_input: input } : { forward_backward_input: input }),
  };
}

function isProtobuf({ type }: HttpReply): boolean {
  return type.includes('protobuf');
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
