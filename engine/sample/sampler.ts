import { setImmediate } from 'node:timers/promises';
import type { InferenceSession } from '../onnx/runtime.ts';
import { RatchetError } from '../../core/errors.ts';
import { decodeRowsMax, keyValueBytesMax } from '../limits.ts';
import type { ModelConfig } from '../model/config.ts';
import type { Parameters } from '../model/parameters.ts';
import { openSession, type SessionOptions } from '../onnx/session.ts';
import { DecodeBatch, type DecodeSessions, type Row, rowsMin } from './decode-batch.ts';
import { buildDecodeGraph } from './decode-graph.ts';
import { KeyValueCache, rowBytes } from './key-value-cache.ts';

export interface SampleRequest {
  readonly promptTokenIds: readonly number[];
  readonly maxTokens: number;
  /** > 0; 0 = greedy, whose logprobs are those of temperature 1. */
  readonly temperature: number;
  /** The random number of the row's t-th sampled token is uniform(seed, t), whatever else is in the batch. */
  readonly seed: number;
  /** Sampling ends after any of these. */
  readonly stopTokenIds: readonly number[];
}

export interface SampleResult {
  /** Sampled ids, the stop token included when it was sampled. */
  readonly tokenIds: number[];
  /** log softmax(logits / temperature) of each sampled id, natural log, not truncated. */
  readonly logprobs: number[];
  readonly finishReason: 'stop' | 'length';
}

export interface GenerateOptions {
  readonly signal?: AbortSignal;
}

export interface SamplerCounters {
  readonly rowsRunning: number;
  readonly rowsWaiting: number;
  readonly tokensTotal: number;
}

/** One call of generate: rows wait here until the batch has room for them. */
interface Call {
  readonly parameters: Parameters;
  readonly requests: readonly SampleRequest[];
  readonly signal: AbortSignal | undefined;
  readonly results: SampleResult[];
  admitted: number;
  finished: number;
  readonly resolve: (results: SampleResult[]) => void;
  readonly reject: (reason: unknown) => void;
}

/**
 * Samples from any number of policy versions of one architecture. Calls that name the version in progress join its
 * batch at the next step; others wait their turn, first come first served. With one thread a row's tokens and logprobs
 * do not depend on its neighbours, bit for bit: no batch has a single row, and random numbers have keys.
 */
export class Sampler {
  readonly config: ModelConfig;
  readonly #sessions: DecodeSessions;
  readonly #cache: KeyValueCache;
  readonly #prefillCache: KeyValueCache;
  readonly #waiting: Call[] = [];
  #running: Promise<void> | null = null;
  #rowsRunning = 0;
  #tokensTotal = 0;

  private constructor(config: ModelConfig, sessions: DecodeSessions) {
    this.config = config;
    this.#sessions = sessions;
    this.#cache = new KeyValueCache(config);
    this.#prefillCache = new KeyValueCache(config);
  }

  static async open(config: ModelConfig, options: SessionOptions): Promise<Sampler> {
    const open = (phase: 'prefill' | 'step'): Promise<InferenceSession> =>
      openSession(buildDecodeGraph(config, phase), options);
    return new Sampler(config, { prefill: await open('prefill'), step: await open('step') });
  }

  /** Results in the order of the requests. An aborted call rejects with the signal's reason at the next step. */
  async generate(
    parameters: Parameters,
    requests: readonly SampleRequest[],
    options: GenerateOptions = {},
  ): Promise<SampleResult[]> {
    requests.forEach((request) => requireSampleable(request, this.config));
    options.signal?.throwIfAborted();
    if (requests.length === 0) return [];
    return new Promise((resolve, reject) => {
      const progress = { results: [], admitted: 0, finished: 0 };
      this.#waiting.push({ parameters, requests, signal: options.signal, ...progress, resolve, reject });
      this.#running ??= this.#run();
    });
  }

  get counters(): SamplerCounters {
    const rowsWaiting = this.#waiting.reduce((sum, call) => sum + call.requests.length - call.admitted, 0);
    return { rowsRunning: this.#rowsRunning, rowsWaiting, tokensTotal: this.#tokensTotal };
  }

  async release(): Promise<void> {
    await this.#running;
    await this.#sessions.prefill.release();
    await this.#sessions.step.release();
  }

  async #run(): Promise<void> {
    // Calls made in one turn of the event loop start together.
    await setImmediate();
    while (this.#waiting[0]) await this.#runBatch(this.#waiting[0].parameters);
    // In the same turn as the last look at the line: a call that comes later finds nobody running and starts anew.
    this.#running = null;
  }

  async #runBatch(parameters: Parameters): Promise<void> {
    const batch = new DecodeBatch({
      parameters,
      sessions: this.#sessions,
      cache: this.#cache,
      prefillCache: this.#prefillCache,
    });
    const calls = new Set<Call>();
    try {
      do {
        this.#dropAborted(batch, calls);
        await batch.prefill(this.#admit(parameters, batch, calls));
        await batch.step();
        this.#rowsRunning = batch.rowCount;
        this.#tokensTotal += batch.takeTokenCount();
      } while (batch.rowCount > 0 || this.#waiting[0]?.parameters === parameters);
    } catch (error) {
      for (const call of calls) this.#end(call, () => call.reject(error));
    }
    this.#rowsRunning = 0;
  }

  /** Rows of the first calls in line, as long as they name this version and fit. */
  #admit(parameters: Parameters, batch: DecodeBatch, calls: Set<Call>): Row[] {
    const rows: Row[] = [];
    let longest = batch.longest;
    for (let call = this.#waiting[0]; call?.parameters === parameters; call = this.#waiting[0]) {
      const request = call.requests[call.admitted]!;
      longest = Math.max(longest, request.promptTokenIds.length + request.maxTokens);
      if (!fits(this.config, batch.rowCount + rows.length + 1, longest)) break;
      calls.add(call);
      rows.push(this.#row(call, call.admitted++, () => calls.delete(call)));
      if (call.admitted === call.requests.length) this.#waiting.shift();
    }
    return rows;
  }

  #row(call: Call, index: number, onDone: () => void): Row {
    return {
      request: call.requests[index]!,
      owner: call,
      tokenIds: [],
      logprobs: [],
      finish: (result) => {
        call.results[index] = result;
        call.finished++;
        if (call.finished < call.requests.length) return;
        onDone();
        call.resolve(call.results);
      },
    };
  }

  #dropAborted(batch: DecodeBatch, calls: ReadonlySet<Call>): void {
    for (const call of new Set([...calls, ...this.#waiting])) {
      if (!call.signal?.aborted) continue;
      batch.drop(call);
      this.#end(call, () => call.reject(call.signal?.reason));
    }
  }

  #end(call: Call, settle: () => void): void {
    const place = this.#waiting.indexOf(call);
    if (place >= 0) this.#waiting.splice(place, 1);
    settle();
  }
}

/** The smallest batch always fits: rows too long for it are refused before. */
function fits(config: ModelConfig, rows: number, length: number): boolean {
  return rows <= decodeRowsMax && Math.max(rows, rowsMin) * rowBytes(config, length) <= keyValueBytesMax;
}

/** Refuses what no model of this architecture can sample. */
export function requireSampleable(request: SampleRequest, config: ModelConfig): void {
  const { promptTokenIds, maxTokens, temperature, seed } = request;
  const refuse = (message: string): never => {
    throw new RatchetError('InferenceRejected', message);
  };
  if (promptTokenIds.length === 0) refuse('The prompt has no tokens; expected at least one.');
  if (!Number.isInteger(maxTokens) || maxTokens < 1) refuse(`max_tokens must be an integer ≥ 1, got ${maxTokens}.`);
  const total = promptTokenIds.length + maxTokens;
  if (total > config.positionsMax) {
    refuse(
      `The prompt of ${promptTokenIds.length} tokens and max_tokens ${maxTokens} need ${total} positions; the model ` +
        `has ${config.positionsMax}. Shorten the prompt or lower max_tokens.`,
    );
  }
  if (rowsMin * rowBytes(config, total) > keyValueBytesMax) {
    const mib = (bytes: number): string => `${Math.ceil(bytes / 2 ** 20)} MiB`;
    refuse(
      `${total} positions need ${mib(rowsMin * rowBytes(config, total))} of keys and values; the engine keeps at most ` +
        `${mib(keyValueBytesMax)}. Lower max_tokens.`,
    );
  }
  const foreign = promptTokenIds.find((id) => !Number.isInteger(id) || id < 0 || id >= config.vocabularySize);
  if (foreign !== undefined) refuse(`Token id ${foreign} is outside the vocabulary of ${config.vocabularySize}.`);
  const isInRange = temperature === 0 || (temperature >= temperatureMin && temperature <= temperatureMax);
  if (!isInRange) {
    refuse(`temperature must be 0 (greedy) or from ${temperatureMin} to ${temperatureMax}, got ${temperature}.`);
  }
  if (!Number.isSafeInteger(seed)) refuse(`seed must be a safe integer, got ${seed}.`);
}

/** Outside of these, logits / temperature leaves the range in which 32-bit floats tell tokens apart. */
const temperatureMin = 1e-3;
const temperatureMax = 100;
