import type { InferenceSession } from 'onnxruntime-node';
import { RatchetError } from '../../core/errors.ts';
import { decodeRowsMax, keyValueBytesMax } from '../limits.ts';
import type { ModelConfig } from '../model/config.ts';
import type { Parameters } from '../model/parameters.ts';
import { openSession, type SessionOptions } from '../onnx/session.ts';
import { DecodeBatch, type DecodeSessions } from './decode-batch.ts';
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
  /** Called after each step with the number of tokens it sampled. */
  readonly onTokens?: (count: number) => void;
}

/**
 * Samples from any number of policy versions of one architecture. With one thread a row's tokens and logprobs do not
 * depend on its neighbours, bit for bit: no batch has a single row, and random numbers have keys.
 */
export class Sampler {
  readonly config: ModelConfig;
  readonly #sessions: DecodeSessions;
  readonly #cache: KeyValueCache;
  readonly #prefillCache: KeyValueCache;
  /** The caches serve one batch at a time: calls wait for each other. */
  #tail: Promise<unknown> = Promise.resolve();

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
    const turn = this.#tail.then(() => this.#generate(parameters, requests, options));
    this.#tail = turn.catch(() => undefined);
    return turn;
  }

  async release(): Promise<void> {
    await this.#tail;
    await this.#sessions.prefill.release();
    await this.#sessions.step.release();
  }

  async #generate(
    parameters: Parameters,
    requests: readonly SampleRequest[],
    options: GenerateOptions,
  ): Promise<SampleResult[]> {
    const results: SampleResult[] = [];
    for (const rows of splitRows(this.config, requests)) {
      const batch = new DecodeBatch({
        parameters,
        requests: rows,
        sessions: this.#sessions,
        cache: this.#cache,
        prefillCache: this.#prefillCache,
      });
      results.push(...(await batch.run(options)));
    }
    return results;
  }
}

/** Consecutive requests, as many at a time as the limits on rows and cache allow. */
function splitRows(config: ModelConfig, requests: readonly SampleRequest[]): SampleRequest[][] {
  const batches: SampleRequest[][] = [];
  let longest = 0;
  for (const request of requests) {
    const batch = batches.at(-1);
    longest = Math.max(longest, request.promptTokenIds.length + request.maxTokens);
    const fits =
      batch && batch.length < decodeRowsMax && (batch.length + 1) * rowBytes(config, longest) <= keyValueBytesMax;
    if (fits) {
      batch.push(request);
    } else {
      batches.push([request]);
      longest = request.promptTokenIds.length + request.maxTokens;
    }
  }
  return batches;
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
  const foreign = promptTokenIds.find((id) => !Number.isInteger(id) || id < 0 || id >= config.vocabularySize);
  if (foreign !== undefined) refuse(`Token id ${foreign} is outside the vocabulary of ${config.vocabularySize}.`);
  if (!(temperature >= 0 && temperature <= temperatureMax)) {
    refuse(`temperature must be between 0 and ${temperatureMax}, got ${temperature}.`);
  }
  if (temperature > 0 && temperature < temperatureMin) {
    refuse(`temperature ${temperature} is below ${temperatureMin}; use 0 for greedy decoding.`);
  }
  if (!Number.isSafeInteger(seed)) refuse(`seed must be a safe integer, got ${seed}.`);
}

/** Outside of these, logits / temperature leaves the range in which 32-bit floats tell tokens apart. */
const temperatureMin = 1e-3;
const temperatureMax = 100;
