import { setImmediate } from 'node:timers/promises';
import type { InferenceSession } from '../onnx/runtime.ts';
import { decodeRowsMax, keyValueBytesMax } from '../limits.ts';
import type { ModelConfig } from '../model/config.ts';
import type { Parameters } from '../model/parameters.ts';
import { openSession, type SessionOptions } from '../onnx/session.ts';
import { DecodeBatch, type DecodeSessions, type Row } from './decode-batch.ts';
import { buildDecodeGraph } from './decode-graph.ts';
import { KeyValueCache, rowBytes } from './key-value-cache.ts';
import { requireSampleable, rowsMin, type SampleRequest, type SampleResult } from './sample-request.ts';

export type { SampleRequest, SampleResult } from './sample-request.ts';
export { requireSampleable } from './sample-request.ts';

export interface GenerateOptions {
  readonly signal?: AbortSignal;
  /** Called once per sampled token, in the order of its row; `index` is that of the request in the call. */
  readonly onToken?: (index: number, tokenId: number, logprob: number) => void;
}

export interface SamplerCounters {
  readonly rowsRunning: number;
  readonly rowsWaiting: number;
  readonly tokensTotal: number;
  /** Keys and values that rows may come to need, of keyValueBytesMax. */
  readonly keyValueBytesUsed: number;
  readonly keyValueBytesMax: number;
  /** Prompt tokens of all admitted rows, and those that were computed: the others were shared. */
  readonly promptTokensTotal: number;
  readonly promptTokensComputed: number;
}

/** One call of generate: rows wait here until the batch has room for them. */
interface Call {
  readonly parameters: Parameters;
  readonly requests: readonly SampleRequest[];
  readonly signal: AbortSignal | undefined;
  readonly onToken: GenerateOptions['onToken'];
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
      this.#waiting.push({
        parameters,
        requests,
        signal: options.signal,
        onToken: options.onToken,
        ...progress,
        resolve,
        reject,
      });
      this.#running ??= this.#run();
    });
  }

  get counters(): SamplerCounters {
    const rowsWaiting = this.#waiting.reduce((sum, call) => sum + call.requests.length - call.admitted, 0);
    return {
      rowsRunning: this.#rowsRunning,
      rowsWaiting,
      tokensTotal: this.#tokensTotal,
      keyValueBytesUsed: 0,
      keyValueBytesMax,
      promptTokensTotal: 0,
      promptTokensComputed: 0,
    };
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
      onToken: (tokenId, logprob) => call.onToken?.(index, tokenId, logprob),
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
