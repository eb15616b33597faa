import { randomInt, randomUUID } from 'node:crypto';
import { hash32 } from '../../core/random.ts';
import { requestChoicesMax } from '../limits.ts';
import type { ChatTokenizer } from '../model/tokenizer.ts';
import type { SampleRequest, SampleResult } from '../sample/sampler.ts';
import { HttpError } from './http.ts';
import type { HeldVersion } from './versions.ts';
import type { ChatRequest, CompletionRequest } from './wire.ts';

/** POST /v1/completions and /v1/chat/completions: from a request's body to an answer in OpenAI's words. */

type SamplingRequest = CompletionRequest | ChatRequest;

/** What OpenAI's API gives when max_tokens is left out of a completion. */
const completionMaxTokensDefault = 16;

export async function complete(
  version: HeldVersion,
  request: CompletionRequest,
  signal: AbortSignal,
): Promise<Record<string, unknown>> {
  const { tokenizer } = version.model;
  const prompts = promptsOf(request.prompt, tokenizer);
  const maxTokens = request.max_tokens ?? completionMaxTokensDefault;
  const results = await sample({ version, request, prompts, maxTokens: () => maxTokens, signal });
  const n = request.n ?? 1;
  const choices = results.map((result, index) => ({
    index,
    text: tokenizer.decode(result.tokenIds),
    logprobs: request.logprobs == null ? null : completionLogprobs(result, tokenizer),
    finish_reason: result.finishReason,
    ...(request.return_token_ids && {
      token_ids: result.tokenIds,
      prompt_token_ids: prompts[Math.floor(index / n)],
    }),
  }));
  return { ...envelope('cmpl', 'text_completion', version), choices, usage: usageOf(prompts, results) };
}

export async function chat(
  version: HeldVersion,
  request: ChatRequest,
  signal: AbortSignal,
): Promise<Record<string, unknown>> {
  const { tokenizer, config } = version.model;
  const prompt = tokenizer.renderChat(request.messages);
  const asked = request.max_completion_tokens ?? request.max_tokens;
  const maxTokens = asked ?? Math.max(1, config.positionsMax - prompt.length);
  const results = await sample({ version, request, prompts: [prompt], maxTokens: () => maxTokens, signal });
  const choices = results.map((result, index) => ({
    index,
    message: { role: 'assistant', content: tokenizer.decode(result.tokenIds), refusal: null },
    logprobs: request.logprobs ? { content: chatLogprobs(result, tokenizer), refusal: null } : null,
    finish_reason: result.finishReason,
    ...(request.return_token_ids && { token_ids: result.tokenIds }),
  }));
  return {
    ...envelope('chatcmpl', 'chat.completion', version),
    choices,
    usage: usageOf([prompt], results),
    ...(request.return_token_ids && { prompt_token_ids: prompt }),
  };
}

interface Sampling {
  readonly version: HeldVersion;
  readonly request: SamplingRequest;
  readonly prompts: readonly (readonly number[])[];
  readonly maxTokens: (prompt: readonly number[]) => number;
  readonly signal: AbortSignal;
}

/** Choices in prompt-major order. */
async function sample({ version, request, prompts, maxTokens, signal }: Sampling): Promise<SampleResult[]> {
  const n = request.n ?? 1;
  const count = prompts.length * n;
  if (count > requestChoicesMax) {
    throw new HttpError(400, `The request asks for ${count} choices; at most ${requestChoicesMax}.`, { param: 'n' });
  }
  const seeds = seedsOf(request, count);
  const { model, sampler } = version;
  const requests = seeds.map((seed, index): SampleRequest => {
    const promptTokenIds = prompts[Math.floor(index / n)]!;
    return {
      promptTokenIds,
      maxTokens: maxTokens(promptTokenIds),
      temperature: request.temperature ?? 1,
      seed,
      stopTokenIds: model.config.endTokenIds,
    };
  });
  const results = await sampler.generate(model.parameters, requests, { signal });
  requireFinite(version, results);
  return results;
}

/** A single choice uses the seed as it is; several get seeds of their own from it. */
function seedsOf({ seed, seeds }: SamplingRequest, count: number): number[] {
  if (seeds && seeds.length !== count) {
    throw new HttpError(400, `"seeds" must have one seed per choice: expected ${count}, got ${seeds.length}.`, {
      param: 'seeds',
    });
  }
  if (seeds) return seeds;
  const root = seed ?? randomInt(2 ** 47);
  return count === 1 ? [root] : Array.from({ length: count }, (_, index) => hash32('choice', root, index));
}

function requireFinite(version: HeldVersion, results: readonly SampleResult[]): void {
  if (results.every(({ logprobs }) => logprobs.every(Number.isFinite))) return;
  const message = `The version "${version.name}" gives probabilities that are not numbers: its weights are broken.`;
  throw new HttpError(500, message, { code: 'CheckpointDamaged', headers: { 'x-should-retry': 'false' } });
}

function promptsOf(prompt: CompletionRequest['prompt'], tokenizer: ChatTokenizer): number[][] {
  if (typeof prompt === 'string') return [tokenizer.encode(prompt)];
  if (isTokenIds(prompt)) return [prompt];
  return prompt.map((entry) => (typeof entry === 'string' ? tokenizer.encode(entry) : entry));
}

function isTokenIds(prompt: readonly (string | number | number[])[]): prompt is number[] {
  return typeof prompt[0] === 'number';
}

/** Nine digits are enough to give the same 32-bit float again, in half the text. */
function shortest(value: number): number {
  return Number(value.toPrecision(9));
}

function completionLogprobs({ tokenIds, logprobs }: SampleResult, tokenizer: ChatTokenizer): Record<string, unknown> {
  const tokens = tokenIds.map((id) => tokenizer.tokenText(id));
  let offset = 0;
  return {
    tokens,
    token_logprobs: logprobs.map(shortest),
    top_logprobs: tokens.map(() => null),
    text_offset: tokens.map((token) => {
      const start = offset;
      offset += token.length;
      return start;
    }),
  };
}

function chatLogprobs({ tokenIds, logprobs }: SampleResult, tokenizer: ChatTokenizer): Record<string, unknown>[] {
  return tokenIds.map((id, i) => {
    const token = tokenizer.tokenText(id);
    return { token, logprob: shortest(logprobs[i]!), bytes: [...Buffer.from(token)], top_logprobs: [] };
  });
}

function envelope(prefix: string, object: string, version: HeldVersion): Record<string, unknown> {
  return {
    id: `${prefix}-${randomUUID()}`,
    object,
    created: Math.floor(Date.now() / 1000),
    model: version.name,
    system_fingerprint: version.digest,
  };
}

function usageOf(
  prompts: readonly (readonly number[])[],
  results: readonly SampleResult[],
): Record<'prompt_tokens' | 'completion_tokens' | 'total_tokens', number> {
  const prompt_tokens = prompts.reduce((sum, prompt) => sum + prompt.length, 0);
  const completion_tokens = results.reduce((sum, { tokenIds }) => sum + tokenIds.length, 0);
  return { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens };
}
