import { once } from 'node:events';
import { appendFileSync, existsSync, readFileSync, readdirSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import { hash32 } from '../../../core/random.ts';
import { createPreset, saveModelFolder } from '../../../engine/index.ts';
import type { SampledLine } from '../../faults/fake-inference.ts';
import { lossRequest, lossSum, passOutput } from './losses.ts';
import type { StandInOptions } from './options.ts';
import { Journal, type Outcome, type Sampled } from './journal.ts';
import { Slots } from './slots.ts';
import { decodePass, encodeResult, protobufType } from './protobuf.ts';
import { tar, tarGz } from './tar.ts';
import { Adam, Forward, name, Pass, SampleWish, Wrong } from './words.ts';

/** One piece of training's work at the server, in milliseconds of the system clock. */
export interface Span {
  readonly call: string;
  readonly from: number;
  readonly to: number;
}

export interface StandIn {
  /** Times of the training calls there, in order; sampling is not included. */
  readonly spans: readonly Span[];
  readonly url: string;
  /** How often each route was asked, by its last word. */
  readonly calls: Readonly<Record<string, number>>;
  close(): Promise<void>;
}

const longPollMs = 20_000;
class Refusal extends Error {
  readonly status: number;
  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

export async function startTinkerStandIn(options: StandInOptions): Promise<StandIn> {
  const isPreset = options.model.startsWith('preset:');
  const base = isPreset ? path.join(options.folder, 'base') : options.model;
  if (isPreset && !existsSync(path.join(base, 'model.safetensors'))) {
    await saveModelFolder(createPreset(options.model, { seed: 0 }), base);
  }
  const journal = new Journal(options.folder);
  const isHosted = options.hostedKey !== undefined;
  const { holdsOne = false, isLikeTuft = false, ignoresAdam = false, merges = false, takesRankZero = false } = options;
  const sums = isHosted || holdsOne || isLikeTuft || options.samplesLatest === true;
  const slots = await Slots.open({
    base,
    folder: options.folder,
    count: (options.maxAdapters ?? 8) - 1,
    sampling: holdsOne || options.samplesLatest ? 'latest' : isHosted || isLikeTuft ? 'apart' : 'in the model',
    adding: options.adding ?? { by: sums ? 'sum' : 'sequence_mean', over: 'step' },
    holdsOne,
    ignoresAdam,
    merges,
    takesRankZero,
  });
  if (isLikeTuft) await restoreModels(journal, slots);
  const service = new Service(options, journal, slots);
  const server = createServer((request, response) => void service.handle(request, response));
  server.keepAliveTimeout = 5_000; // uvicorn's
  server.listen(options.port ?? 0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  service.port = port;
  return {
    url: `http://127.0.0.1:${port}`,
    calls: service.calls,
    spans: service.spans,
    close: async () => {
      service.stop();
      await closed(server);
      await slots.close();
    },
  };
}

/** TuFT brings a model back as its newest checkpoint had it. */
async function restoreModels({ remembered: { models, checkpoints } }: Journal, slots: Slots): Promise<void> {
  for (const [model, { rank, seed }] of models) {
    await slots.create(model, { rank, seed });
    const newest = [...checkpoints].findLast((checkpoint) => checkpoint.startsWith(`${model}/weights/`));
    if (newest !== undefined) await slots.get(model).load(slots.folderOf(newest), true);
  }
}

/** Below a model's name, by the route that makes them. */
const checkpointKinds = {
  save_weights: 'weights',
  save_weights_for_sampler: 'sampler_weights',
  save_weights_external: 'external_weights',
} as const;

class Service {
  port = 0;
  readonly calls: Record<string, number> = {};
  readonly spans: Span[] = [];
  readonly #options: StandInOptions;
  readonly #journal: Journal;
  readonly #slots: Slots;
  readonly #heartbeats = new Map<string, number>();
  readonly #settled = new Map<string, () => void>();
  /** Work is done one piece after the other, as SkyRL's engine does it. */
  #tail: Promise<unknown> = Promise.resolve();
  readonly #cleaner: ReturnType<typeof setInterval>;

  constructor(options: StandInOptions, journal: Journal, slots: Slots) {
    this.#options = options;
    this.#journal = journal;
    this.#slots = slots;
    const timeoutMs = options.sessionTimeoutMs ?? 300_000;
    this.#cleaner = setInterval(() => this.#endSessions(timeoutMs), Math.min(1_000, timeoutMs / 4));
  }

  stop(): void {
    clearInterval(this.#cleaner);
  }

  async handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const route = (request.url ?? '').split('?')[0]!;
    try {
      const chunks: Buffer[] = [];
      for await (const chunk of request) chunks.push(chunk as Buffer);
      const isHeard = (): boolean => !response.destroyed;
      const { hostedKey } = this.#options;
      if (hostedKey !== undefined && request.headers['x-api-key'] !== hostedKey) throw new Refusal(401, 'Invalid key');
      const bytes = Buffer.concat(chunks);
      const knowsProtobuf = hostedKey !== undefined || this.#options.isLikeTuft === true;
      const isProtobuf = knowsProtobuf && request.headers['content-type'] === protobufType;
      if (this.#options.isLikeTuft && !isProtobuf && route.endsWith('/forward_backward'))
        throw new Refusal(415, `Unsupported Content-Type; expected ${protobufType}`);
      if (this.#options.isLikeTuft && route.endsWith('/forward')) throw new Refusal(404, 'Not Found');
      const body = isProtobuf ? decodePass(bytes) : jsonIn(bytes);
      const answer = await this.#answer(route, request.method ?? '', body, isHeard);
      const encoded = request.headers.accept === protobufType && knowsProtobuf ? encodeResult(answer) : null;
      if (encoded) response.writeHead(200, { 'content-type': protobufType }).end(encoded);
      else if (answer instanceof URL) response.writeHead(302, { location: answer.href }).end();
      else if (answer instanceof Buffer)
        response.writeHead(200, { 'content-type': 'application/octet-stream' }).end(answer);
      else send(response, 200, answer);
    } catch (error) {
      if (error instanceof Refusal) send(response, error.status, { detail: error.message });
      else if (error instanceof z.ZodError) send(response, 422, { detail: error.issues });
      else if (error instanceof SyntaxError) send(response, 500, 'Internal Server Error'); // what protobuf gets from 0.3.0
      else send(response, 500, String(error));
    }
  }

  async #answer(route: string, method: string, body: unknown, isHeard: () => boolean): Promise<unknown> {
    const word = route.split('/').at(-1)!;
    this.calls[word] = (this.calls[word] ?? 0) + 1;
    if (method === 'GET') return this.#read(route);
    const { sessions, models } = this.#journal.remembered;
    switch (route.replace('/api/v1/', '')) {
      case 'client/config':
        return { pjwt_auth_enabled: false };
      case 'create_session': {
        const session = `session_${randomUUID().slice(0, 8)}`;
        this.#journal.write({ session });
        this.#heartbeats.set(session, performance.now());
        return { type: 'create_session', session_id: session };
      }
      case 'session_heartbeat': {
        const { session_id: session } = z.object({ session_id: z.string() }).parse(body);
        if (!sessions.has(session)) throw new Refusal(404, 'Session not found');
        if (this.#finished.has(session)) throw new Refusal(410, 'Session is finished');
        this.#heartbeats.set(session, performance.now());
        return { type: 'session_heartbeat' };
      }
      case 'create_model': {
        const shape = z.object({
          session_id: z.string(),
          base_model: z.string(),
          lora_config: z.object({ rank: z.int(), seed: z.int().default(0) }),
        });
        const { session_id: session, lora_config } = shape.parse(body);
        if (!sessions.has(session)) throw new Refusal(404, 'Session not found');
        if (this.#finished.has(session)) throw new Refusal(410, 'Session is finished');
        const model = `model_${randomUUID().slice(0, 8)}`;
        this.#heartbeats.set(session, performance.now());
        this.#journal.write({ model, of: session, ...lora_config });
        const created = async () => {
          await this.#slots.create(model, lora_config);
          return { model_id: model };
        };
        return { ...this.#promise(word, created), model_id: model };
      }
      case 'get_info': {
        const { model_id: model } = z.object({ model_id: z.string() }).parse(body);
        this.#requireModel(model);
        const model_data = { model_name: this.#options.model };
        return { model_id: model, model_data, is_lora: true, lora_rank: models.get(model)!.rank };
      }
      case 'create_sampling_session': {
        const { model_path: from } = z.object({ model_path: z.string() }).parse(body);
        const session = `sampling_${randomUUID().slice(0, 8)}`;
        this.#samplingSessions.set(session, from);
        return { type: 'create_sampling_session', sampling_session_id: session };
      }
      case 'unload_model': {
        const { model_id: model } = z.object({ model_id: z.string() }).parse(body);
        if (this.#options.isLikeTuft) this.#journal.write({ forgotten: model });
        return this.#promise(word, async () => this.#slots.unload(model));
      }
      case 'forward_backward': {
        if (typeof body === 'object' && body !== null && 'forward_input' in body) return this.#forward(body);
        this.#requireTurn(body);
        const { model_id: model, forward_backward_input: input } = Pass.parse(body);
        this.#requireModel(model);
        const request = lossRequest(input, this.#options.replacesLosses);
        return this.#promise(word, async () => {
          const logprobs = await this.#slots.get(model).forwardBackward(request);
          return passOutput(logprobs, this.#options.isLikeTuft ? { 'loss:sum': lossSum(request, logprobs) } : {});
        });
      }
      case 'forward':
        return this.#forward(body);
      case 'optim_step': {
        const { model_id: model, adam_params: adam } = z
          .object({ model_id: z.string(), adam_params: Adam })
          .parse(body);
        this.#requireModel(model);
        this.#requireTurn(body);
        return this.#promise(word, async () => {
          const { gradNorm } = await this.#slots.get(model).optimStep(adam);
          if (this.#options.isSilent || this.#options.isLikeTuft) return { metrics: {} };
          return { metrics: { 'skyrl.ai/grad_norm': gradNorm, 'skyrl.ai/learning_rate': adam.learning_rate } };
        });
      }
      case 'save_weights':
      case 'save_weights_external':
      case 'save_weights_for_sampler': {
        const { model_id: model, path: wanted } = z.object({ model_id: z.string(), path: name }).parse(body);
        this.#requireModel(model);
        const kind = checkpointKinds[word as keyof typeof checkpointKinds];
        const checkpoint = `${model}/${kind}/${wanted}`;
        if (this.#taken.has(checkpoint) || this.#journal.remembered.checkpoints.has(checkpoint)) {
          throw new Refusal(409, `Checkpoint '${wanted}' already exists for model '${model}'`);
        }
        this.#taken.add(checkpoint);
        this.#requireTurn(body);
        return this.#promise(word, async () => {
          await (kind === 'weights'
            ? this.#slots.get(model).save(this.#slots.folderOf(checkpoint))
            : this.#slots.saveForSampler(model, checkpoint));
          this.#journal.write({ checkpoint });
          const isPlain = kind === 'sampler_weights' && this.#options.hostedKey === undefined;
          return { type: word, path: `tinker://${model}/${isPlain ? '' : `${kind}/`}${wanted}` };
        });
      }
      case 'load_weights': {
        const shape = z.object({ model_id: z.string(), path: z.string(), optimizer: z.boolean().default(true) });
        const { model_id: model, path: from, optimizer } = shape.parse(body);
        const withMoments = optimizer || this.#options.heedsOptimizer !== true;
        this.#requireModel(model);
        const isFirst = !this.#asked.has(model);
        this.#requireTurn(body);
        if (this.#options.holdsOne && !isFirst) throw new Refusal(400, 'LoadWeights is not permitted with seq_id 2');
        const [source, kind, wanted] = from.replace('tinker://', '').split('/');
        const checkpoint = `${source}/${kind}/${wanted}`;
        if (kind !== 'weights' || !this.#journal.remembered.checkpoints.has(checkpoint)) {
          throw new Refusal(404, `Checkpoint not found: ${source}/${wanted}`);
        }
        return this.#promise(word, async () => {
          await this.#slots.get(model).load(this.#slots.folderOf(checkpoint), withMoments);
          return { type: 'load_weights' };
        });
      }
      case 'asample': {
        const wish = SampleWish.parse(body);
        if (this.#options.isLikeTuft && !this.#samplingSessions.has(wish.sampling_session_id ?? ''))
          throw new Refusal(404, `Session ${wish.sampling_session_id ?? 'None'} not found.`);
        if (this.#options.wantsBase && !(body as { base_model?: unknown }).base_model)
          throw new Refusal(400, 'base_model is required but could not be resolved');
        const from = wish.model_path ?? this.#samplingSessions.get(wish.sampling_session_id ?? '');
        if (from === undefined) throw new Refusal(404, 'Sampling session not found');
        const [model, ...rest] = from.replace('tinker://', '').split('/');
        this.#requireModel(model!);
        const checkpoint = `${model}/sampler_weights/${rest.at(-1)}`;
        if (!this.#journal.remembered.checkpoints.has(checkpoint)) {
          throw new Refusal(404, `Checkpoint not found: ${model}/${rest.at(-1)}`);
        }
        return this.#sample(model!, checkpoint, wish);
      }
      case 'retrieve_future': {
        const { request_id: id } = z.object({ request_id: z.string() }).parse(body);
        return this.#retrieve(id, isHeard);
      }
      case '/stand_in': {
        Wrong.parse(body);
        for (const session of this.#heartbeats.keys()) this.#finished.add(session);
        this.#endSessions(0);
        return {};
      }
      default:
        throw new Refusal(404, models.size >= 0 ? 'Not Found' : '');
    }
  }

  /** The number of each model's last request. */
  readonly #asked = new Map<string, number>();

  /** Requests of a model come in the order of their numbers. A started server knows none of before. */
  #requireTurn(body: unknown): void {
    const { model_id: model, seq_id: number } = z.looseObject({ model_id: z.string(), seq_id: z.int() }).parse(body);
    const expected = (this.#asked.get(model) ?? 0) + 1;
    if (this.#options.isLikeTuft && this.#asked.has(model) && number !== expected)
      throw new Refusal(409, `Sequence conflict: expected ${expected}, got ${number}.`);
    this.#asked.set(model, number);
  }

  readonly #taken = new Set<string>();
  /** Models that sampling sessions sample from. */
  readonly #samplingSessions = new Map<string, string>();

  #forward(body: unknown): { request_id: string } {
    this.#requireTurn(body);
    const { model_id: model, forward_input: input } = Forward.parse(body);
    this.#requireModel(model);
    return this.#promise('forward', async () => passOutput(await this.#slots.get(model).logprobs(input.data)));
  }
  /** Sessions of which nothing more is wanted, as the hosted service says it. */
  readonly #finished = new Set<string>();

  #read(route: string): unknown {
    if (route.endsWith('/healthz')) return { status: 'ok' };
    if (route.endsWith('/get_server_capabilities')) return { supported_models: [{ model_name: this.#options.model }] };
    const archive = /training_runs\/([\w-]+)\/checkpoints\/([\w-]+)\/archive$/.exec(route);
    const { checkpoints } = this.#journal.remembered;
    if (archive) {
      const checkpoint = `${archive[1]}/sampler_weights/${archive[2]}`;
      if (!checkpoints.has(checkpoint)) throw new Refusal(404, `Checkpoint not found: ${checkpoint}`);
      const folder = this.#slots.folderOf(checkpoint);
      if (this.#options.isLikeTuft) return pathToFileURL(folder);
      return this.#options.merges ? tar(folder) : tarGz(folder);
    }
    if (route.endsWith('/training_runs')) {
      const { models } = this.#journal.remembered;
      const runs = [...models.keys()]
        .toReversed()
        .map((model) => ({ training_run_id: model, base_model: this.#options.model }));
      return { training_runs: runs };
    }
    const external =
      /training_runs\/([\w-]+)\/checkpoints\/external_weights\/([\w-]+)\/(external_weights_urls|\w+\.\w+)$/.exec(route);
    if (external) {
      const [, model, wanted, file = ''] = external;
      const folder = this.#slots.folderOf(`${model}/external_weights/${wanted}`);
      if (file.includes('.')) return readFileSync(path.join(folder, file));
      const urlOf = (one: string) => `http://127.0.0.1:${this.port}${route.replace(file, one)}`;
      return { urls: Object.fromEntries(readdirSync(folder).map((one) => [one, urlOf(one)])) };
    }
    const listed = /training_runs\/([\w-]+)\/checkpoints$/.exec(route);
    if (!listed) throw new Refusal(404, 'Not Found');
    const own = [...checkpoints].filter((checkpoint) => checkpoint.startsWith(`${listed[1]}/`));
    return { checkpoints: own.map((checkpoint) => ({ tinker_path: `tinker://${checkpoint}` })) };
  }

  #requireModel(model: string): void {
    if (!this.#journal.remembered.models.has(model)) throw new Refusal(404, 'Model not found');
  }

  #promise(word: string, work: () => Promise<unknown>): { request_id: string } {
    const id = this.#begun();
    const turn = this.#tail.then(async () => {
      const from = Date.now();
      await delay(this.#options.callMs?.[word] ?? 0);
      const result = await work();
      this.spans.push({ call: word, from, to: Date.now() });
      return result;
    });
    this.#tail = turn.catch(() => undefined);
    this.#settle(id, outcomeOf(turn));
    return { request_id: id };
  }

  /** Requests that wait are sampled together, each with its seed; so they do not wait for the training's turn to end. */
  #sample(model: string, checkpoint: string, wish: z.infer<typeof SampleWish>): { request_id: string } {
    const { prompt, sampling_params: params, prompt_logprobs: isScored } = wish;
    const id = this.#begun(params.seed);
    const tokens = prompt.chunks.flatMap((chunk) => chunk.tokens);
    const sampled = async (): Promise<Outcome> => {
      await delay((this.#options.tokenMs ?? 0) * params.max_tokens);
      const { policy, ...sequence } = await this.#slots.sample(model, checkpoint, {
        tokens,
        ...params,
        stop: params.stop ?? [],
      });
      const scored = isScored ? await this.#slots.score(model, checkpoint, tokens) : undefined;
      const { seed, temperature } = params;
      const line = { policy, seed, temperature, prompt: hash32(...tokens) };
      const result = { sequences: [sequence], ...(scored ? { prompt_logprobs: scored } : {}) };
      return { result, ...(params.max_tokens > 1 ? { sampled: line } : {}) };
    };
    this.#settle(id, sampled().catch(failed));
    return { request_id: id };
  }

  #begun(seed?: number): string {
    const id = String(this.#journal.remembered.futures.size + 1);
    this.#journal.write({ future: id, ...(seed === undefined ? {} : { seed }) });
    return id;
  }

  #settle(id: string, work: Promise<Outcome>): void {
    void work.then((outcome) => {
      this.#journal.write({ done: id, outcome });
      this.#settled.get(id)?.();
      this.#settled.delete(id);
    });
  }

  async #retrieve(id: string, isHeard: () => boolean): Promise<unknown> {
    const { futures } = this.#journal.remembered;
    if (!futures.has(id)) throw new Refusal(404, 'Future not found');
    if (futures.get(id) === null) {
      const settled = new Promise<void>((resolve) => this.#settled.set(id, resolve));
      await Promise.race([settled, delay(longPollMs)]);
    }
    const outcome = futures.get(id);
    if (!outcome) throw new Refusal(408, 'Timeout waiting for result');
    if ('error' in outcome) throw new Refusal(400, outcome.error);
    if (outcome.sampled && isHeard()) this.#note(outcome.sampled);
    return outcome.result;
  }

  #note(sampled: Sampled): void {
    const { sampledLog } = this.#options;
    if (sampledLog === undefined) return;
    const line: SampledLine = { ...sampled, pid: process.pid, time: new Date().toISOString() };
    appendFileSync(sampledLog, `${JSON.stringify(line)}\n`);
  }

  /** Those without a heartbeat for so long; their models are gone when their turn comes. */
  #endSessions(timeoutMs: number): void {
    for (const [session, at] of this.#heartbeats) {
      if (performance.now() - at < timeoutMs) continue;
      this.#heartbeats.delete(session);
      for (const [model, { session: of }] of this.#journal.remembered.models) {
        if (of === session) this.#promise('cleanup', async () => this.#slots.unload(model));
      }
    }
  }
}

function outcomeOf(work: Promise<unknown>): Promise<Outcome> {
  return work.then((result) => ({ result }), failed);
}

function failed(error: unknown): Outcome {
  return { error: error instanceof Error ? error.message : String(error) };
}

function jsonIn(bytes: Buffer): unknown {
  return bytes.length === 0 ? {} : JSON.parse(bytes.toString('utf8'));
}

function send(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
}

async function closed(server: Server): Promise<void> {
  server.close();
  server.closeAllConnections();
  if (server.listening) await once(server, 'close');
}
