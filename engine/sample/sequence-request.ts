import { RatchetError } from '../../core/errors.ts';
import { keyValueBytesMax } from '../limits.ts';
import type { ModelConfig } from '../model/config.ts';
import { rowBytes } from './row-bytes.ts';

/**
 * A sequence to sample. The optional fields have vLLM's meanings and are applied in its order (vLLM 0.22,
 * v1/sample/sampler.py): allowed tokens, minTokens, logitBias, repetition, frequency and presence penalties,
 * temperature, minP, topK, topP.
 */
export interface SequenceRequest {
  readonly promptTokenIds: readonly number[];
  readonly maxTokens: number;
  /** > 0; 0 = greedy: its logprobs are those of temperature 1, and minP, topK and topP are ignored. */
  readonly temperature: number;
  /** The random number of the row's t-th sampled token is uniform(seed, t), whatever else is in the batch. */
  readonly seed: number;
  /** Sampling ends after any of these, which is kept. */
  readonly stopTokenIds: readonly number[];
  /** Before this many tokens, stop tokens cannot be drawn and isFinished is not called. 0 … maxTokens; default 0. */
  readonly minTokens?: number;
  /** Keeps the likeliest tokens whose probabilities reach this sum (Holtzman et al. 2020), in (0, 1]; default 1. */
  readonly topP?: number;
  /** Keeps the k largest logits and whatever equals the smallest of them; 0 or −1 = all, the default. */
  readonly topK?: number;
  /** Keeps tokens at least this times as probable as the likeliest (Nguyen et al. 2024), 0 … 1; default 0. */
  readonly minP?: number;
  /** Divides positive logits of tokens in the prompt or the output and multiplies negative ones (CTRL, Keskar et al. 2019), > 0; default 1. */
  readonly repetitionPenalty?: number;
  /** Subtracted from the logits of tokens in the output, −2 … 2; default 0. */
  readonly presencePenalty?: number;
  /** Subtracted once per occurrence in the output, −2 … 2; default 0. */
  readonly frequencyPenalty?: number;
  /** Added to the logits of these tokens; −100 … 100. */
  readonly logitBias?: ReadonlyMap<number, number>;
  /** The only tokens that may be sampled. */
  readonly allowedTokenIds?: readonly number[];
  /** Continue after a token of stopTokenIds. */
  readonly ignoreEnd?: boolean;
  /**
   * Called after every sampled token, from minTokens on, with all ids so far: true ends the row with finishReason
   * 'stop'. Stop texts are the caller's task.
   */
  readonly isFinished?: (tokenIds: readonly number[]) => boolean;
}

export interface SampleResult {
  /** Sampled ids, the stop token included when it was sampled. */
  readonly tokenIds: number[];
  /** log softmax(logits / temperature) of each sampled id, natural log, of the model alone: nothing modified or truncated. */
  readonly logprobs: number[];
  /**
   * Log probabilities under the distribution that was sampled: after bias, penalties and truncation, renormalized. The
   * same array as `logprobs` if the request modifies nothing.
   */
  readonly samplingLogprobs: number[];
  readonly finishReason: 'stop' | 'length';
}

/** A batch of one row takes another path through the matrix kernels and gives other bits, so there is none. */
export const rowsMin = 2;

/**
 * Throws for a request that no model of this architecture can sample; `bytesMax` bounds keys and values of the smallest
 * batch.
 */
export function requireSampleable(
  request: SequenceRequest,
  config: ModelConfig,
  bytesMax: number = keyValueBytesMax,
): void {
  requireRoom(request, config, bytesMax);
  requireTokens('Token id', request.promptTokenIds, config);
  const { temperature, seed } = request;
  if (temperature !== 0) {
    const range = `0 (greedy) or from ${temperatureMin} to ${temperatureMax}`;
    requireThat(temperature >= temperatureMin && temperature <= temperatureMax, 'temperature', range, temperature);
  }
  requireThat(Number.isSafeInteger(seed), 'seed', 'a safe integer', seed);
  requireTruncation(request);
  requirePenalties(request, config);
}

/** Whether a request ever draws from anything but softmax(logits / temperature). */
export function modifiesDistribution(request: SequenceRequest): boolean {
  const { topP = 1, topK = 0, minP = 0, logitBias, allowedTokenIds, temperature } = request;
  const { repetitionPenalty = 1, presencePenalty = 0, frequencyPenalty = 0 } = request;
  const isTruncated = temperature > 0 && (topP < 1 || topK > 0 || minP > 0);
  const isPenalized = repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0;
  const isShifted = (logitBias?.size ?? 0) > 0 || allowedTokenIds !== undefined;
  return isTruncated || isPenalized || isShifted || forbidsStopTokens(request, 0);
}

/** Whether the t-th sampled token may not be a stop token. */
export function forbidsStopTokens({ minTokens = 0, stopTokenIds, ignoreEnd }: SequenceRequest, t: number): boolean {
  return t < minTokens && stopTokenIds.length > 0 && !ignoreEnd;
}

function requireRoom(
  { promptTokenIds, maxTokens, minTokens = 0 }: SequenceRequest,
  config: ModelConfig,
  bytesMax: number,
): void {
  if (promptTokenIds.length === 0) refuse('The prompt has no tokens; expected at least one.');
  requireThat(Number.isInteger(maxTokens) && maxTokens >= 1, 'max_tokens', 'an integer ≥ 1', maxTokens);
  const isMinimum = Number.isInteger(minTokens) && minTokens >= 0 && minTokens <= maxTokens;
  requireThat(isMinimum, 'min_tokens', `an integer from 0 to max_tokens, ${maxTokens}`, minTokens);
  const total = promptTokenIds.length + maxTokens;
  if (total > config.positionsMax) {
    refuse(
      `The prompt of ${promptTokenIds.length} tokens and max_tokens ${maxTokens} need ${total} positions; the model ` +
        `has ${config.positionsMax}. Shorten the prompt or lower max_tokens.`,
    );
  }
  if (rowsMin * rowBytes(config, total) > bytesMax) {
    const mib = (bytes: number): string => `${Math.ceil(bytes / 2 ** 20)} MiB`;
    refuse(
      `${total} positions need ${mib(rowsMin * rowBytes(config, total))} of keys and values; the engine keeps at most ` +
        `${mib(bytesMax)}. Lower max_tokens.`,
    );
  }
}

function requireTruncation({ topP = 1, topK = 0, minP = 0 }: SequenceRequest): void {
  requireThat(topP > 0 && topP <= 1, 'top_p', 'above 0 and at most 1', topP);
  requireThat(Number.isInteger(topK) && topK >= -1, 'top_k', 'an integer ≥ 1, or 0 or −1 for all tokens', topK);
  requireThat(minP >= 0 && minP <= 1, 'min_p', 'from 0 to 1', minP);
}

function requirePenalties(request: SequenceRequest, config: ModelConfig): void {
  const { repetitionPenalty = 1, presencePenalty = 0, frequencyPenalty = 0 } = request;
  const isFactor = repetitionPenalty > 0 && Number.isFinite(repetitionPenalty);
  requireThat(isFactor, 'repetition_penalty', 'a number above 0', repetitionPenalty);
  requireThat(Math.abs(presencePenalty) <= 2, 'presence_penalty', 'from −2 to 2', presencePenalty);
  requireThat(Math.abs(frequencyPenalty) <= 2, 'frequency_penalty', 'from −2 to 2', frequencyPenalty);
  requireTokens('logit_bias: token id', [...(request.logitBias?.keys() ?? [])], config);
  for (const [id, bias] of request.logitBias ?? []) {
    requireThat(Math.abs(bias) <= 100, `logit_bias of token ${id}`, 'from −100 to 100', bias);
  }
  requireAllowed(request, config);
}

/** Throws if no token is left to sample. */
function requireAllowed(request: SequenceRequest, config: ModelConfig): void {
  const { allowedTokenIds, stopTokenIds } = request;
  if (allowedTokenIds) {
    if (allowedTokenIds.length === 0)
      refuse('allowed_token_ids is empty; expected at least one token id, or none given.');
    requireTokens('allowed_token_ids: token id', allowedTokenIds, config);
  }
  if (!forbidsStopTokens(request, 0)) return;
  const stops = new Set(stopTokenIds.filter((id) => id >= 0 && id < config.vocabularySize));
  const isAllStops = allowedTokenIds
    ? allowedTokenIds.every((id) => stops.has(id))
    : stops.size === config.vocabularySize;
  if (isAllStops) {
    refuse(
      'Every token that may be drawn is a stop token, which min_tokens forbids. Lower min_tokens to 0 or allow another token.',
    );
  }
}

function requireTokens(what: string, ids: readonly number[], { vocabularySize }: ModelConfig): void {
  const foreign = ids.find((id) => !Number.isInteger(id) || id < 0 || id >= vocabularySize);
  if (foreign !== undefined) refuse(`${what} ${foreign} is outside the vocabulary of ${vocabularySize}.`);
}

function requireThat(isRight: boolean, name: string, expected: string, received: unknown): void {
  if (!isRight) refuse(`${name} must be ${expected}, got ${String(received)}.`);
}

function refuse(message: string): never {
  throw new RatchetError('InferenceRejected', message);
}

/** Outside of this range, logits / temperature lose the precision with which 32-bit floats distinguish tokens. */
const temperatureMin = 1e-3;
const temperatureMax = 100;
