import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { z } from 'zod';
import { createPreset, saveModelFolder } from '../../../engine/index.ts';
import { Futures, type Span } from './futures.ts';
import { Journal } from './journal.ts';
import type { StandInOptions } from './options.ts';
import { decodePass, encodeResult, protobufType } from './protobuf.ts';
import { Reads } from './reads.ts';
import { Refusal } from './refusal.ts';
import { Sampling } from './sampling.ts';
import { Sessions } from './sessions.ts';
import { Slots } from './slots.ts';
import { Training } from './training.ts';

export type { Span } from './futures.ts';

export interface StandIn {
  /** Times of the training calls there, in order; sampling is not included. */
  readonly spans: readonly Span[];
  readonly url: string;
  /** How often each route was asked, by its last word. */
  readonly calls: Readonly<Record<string, number>>;
  close(): Promise<void>;
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

/** Requests and their answers; each route is somebody's. */
class Service {
  port = 0;
  readonly calls: Record<string, number> = {};
  readonly #options: StandInOptions;
  readonly #futures: Futures;
  readonly #reads: Reads;
  readonly #sessions: Sessions;
  readonly #sampling: Sampling;
  readonly #training: Training;

  constructor(options: StandInOptions, journal: Journal, slots: Slots) {
    this.#options = options;
    this.#futures = new Futures(options, journal);
    this.#reads = new Reads(options, journal, slots, () => this.port);
    this.#sessions = new Sessions(options, journal, slots, this.#futures);
    this.#sampling = new Sampling(options, journal, slots, this.#futures);
    this.#training = new Training(options, journal, slots, this.#futures);
  }

  get spans(): readonly Span[] {
    return this.#futures.spans;
  }

  stop(): void {
    this.#sessions.stop();
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
    if (method === 'GET') return this.#reads.answer(route);
    if (route === '/api/v1/client/config') return { pjwt_auth_enabled: false };
    if (route === '/api/v1/retrieve_future') {
      const { request_id: id } = z.object({ request_id: z.string() }).parse(body);
      return this.#futures.retrieve(id, isHeard);
    }
    for (const part of [this.#sessions, this.#sampling, this.#training]) {
      const answer: unknown = isKnown(route, word) ? part.answer(word, body) : undefined;
      if (answer !== undefined) return answer;
    }
    throw new Refusal(404, 'Not Found');
  }
}

/** Faults are asked for by a route of the stand-in's own. */
function isKnown(route: string, word: string): boolean {
  return route === `/api/v1/${word}` || route === '/stand_in';
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
