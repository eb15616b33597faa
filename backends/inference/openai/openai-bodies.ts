import { z } from 'zod';
import { RatchetError } from '../../../core/errors.ts';
import { present } from '../../../core/present.ts';
import { unlike } from '../../answer-words.ts';
import { finishOf } from './finish-reason.ts';
import { UnusableAnswer } from './refusal.ts';
import { areIds, isLogprob } from './token-lists.ts';
import type { ChatRequest, Sample, SampleRequest, SamplingModifiers } from '../types.ts';

/** Bodies of requests and answers: OpenAI's, with the fields that vLLM and our own server add to them. */

/** vLLM's fields; neutral values are left to the server's equal defaults. */
export function samplingBody(
  request: SamplingModifiers & Pick<SampleRequest, 'maxTokens' | 'temperature' | 'responseFormat'>,
): Record<string, unknown> {
  const { topP = 1, topK = null, minP = 0, minTokens = 0, stop = [] } = request;
  const { repetitionPenalty = 1, presencePenalty = 0, frequencyPenalty = 0 } = request;
  return {
    max_tokens: request.maxTokens,
    temperature: request.temperature,
    ...(topP === 1 ? {} : { top_p: topP }),
    ...(topK === null ? {} : { top_k: topK }),
    ...(minP === 0 ? {} : { min_p: minP }),
    ...(repetitionPenalty === 1 ? {} : { repetition_penalty: repetitionPenalty }),
    ...(presencePenalty === 0 ? {} : { presence_penalty: presencePenalty }),
    ...(frequencyPenalty === 0 ? {} : { frequency_penalty: frequencyPenalty }),
    ...(minTokens === 0 ? {} : { min_tokens: minTokens }),
    ...(stop.length === 0 ? {} : { stop }),
    ...(request.responseFormat === undefined ? {} : { response_format: request.responseFormat }),
  };
}

/** Throws if an answer must have a form that the adapter cannot see to. */
export function requireFree({ responseFormat }: Pick<SampleRequest, 'responseFormat'>, engine: string): void {
  if (responseFormat === undefined) return;
  throw new RatchetError('Unsupported', `"response_format" is not supported by ${engine}; vLLM has it. Leave it out.`);
}

/** Fields for `/v1/completions` that request ids and logprobs. */
export const withTokenIds = { logprobs: 0, return_token_ids: true };

const logprobsOf = z.custom<number[]>(
  (value) => Array.isArray(value) && value.every(isLogprob),
  'expected a list of log probabilities: numbers up to 0',
);
const logprobIn = z.custom<number>(isLogprob, 'expected a log probability: a number up to 0');

const ids = z.custom<number[]>(areIds, 'expected a list of token ids: whole numbers from 0');

const Completions = z.object({
  choices: z.array(
    z.object({
      index: z.int().nullish(),
      finish_reason: z.unknown().optional(),
      token_ids: ids,
      logprobs: z.object({ token_logprobs: logprobsOf }),
      /** Our own field, if the sampling distribution differs from that of the logprobs. */
      sampling_logprobs: logprobsOf.nullish(),
    }),
  ),
});

/** Whether sampling is from another distribution than softmax(logits / temperature). */
export function changesDistribution(request: SamplingModifiers & Pick<SampleRequest, 'responseFormat'>): boolean {
  const { topP = 1, topK = null, minP = 0, minTokens = 0 } = request;
  const { repetitionPenalty = 1, presencePenalty = 0, frequencyPenalty = 0 } = request;
  const isCut = topP < 1 || topK !== null || minP > 0 || minTokens > 0;
  const isFormed = request.responseFormat !== undefined;
  return isCut || isFormed || repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0;
}

/**
 * The samples of an answer of `/v1/completions`, in the order of the prompts. `tellsSamplers`: its log probabilities
 * are the sampler's, of a changed distribution, unless the answer has both kinds for each token.
 */
export function samplesIn(
  answer: unknown,
  {
    count,
    root,
    tellsSamplers = false,
  }: { readonly count: number; readonly root: string; readonly tellsSamplers?: boolean },
): Sample[] {
  requireChoices(answer, root);
  const read = Completions.safeParse(answer);
  const choices = read.success ? inOrder(read.data.choices, count) : null;
  const uneven = choices?.find((choice) => !isEven(choice));
  if (!read.success || choices === null || uneven) {
    const received = !read.success
      ? unlike(read.error, answer)
      : uneven
        ? `${uneven.token_ids.length} token ids with ${uneven.logprobs.token_logprobs.length} logprobs`
        : `${read.data.choices.length} choices`;
    throw new RatchetError(
      'InferenceRejected',
      `${root}/v1/completions: expected ${count} choices with token ids and logprobs, got ${received}. Training needs the ids that were sampled: Ratchet's policy server and vLLM (return_token_ids) give them.`,
    );
  }
  return choices.map((choice) => ({
    tokenIds: choice.token_ids,
    ...bothLogprobs(choice, tellsSamplers),
    finishReason: finishOf(choice.finish_reason, { root, hasAnswer: false }),
  }));
}

/**
 * Throws if a server gives no choice at all, as gateways do when the server behind them fails: a retry may give one.
 */
export function requireChoices(answer: unknown, root: string, route = '/v1/completions'): void {
  const { choices } = (answer ?? {}) as { readonly choices?: unknown };
  if (choices !== null && (!Array.isArray(choices) || choices.length > 0)) return;
  throw new UnusableAnswer(
    `${root}${route}: expected choices, got ${choices === null ? 'null in their place' : 'an empty list of them'}.`,
  );
}

/**
 * Choices in the order of the prompts; null unless there is one for each. A single prompt may get several choices: the
 * first is its answer.
 */
function inOrder<T extends { readonly index?: number | null | undefined }>(choices: T[], count: number): T[] | null {
  if (count === 1) return [choices.find(({ index }) => index === 0) ?? choices[0]!];
  if (choices.length !== count) return null;
  if (choices.every(({ index }) => index == null)) return choices;
  const sorted = choices.toSorted((a, b) => (a.index ?? -1) - (b.index ?? -1));
  return sorted.every(({ index }, i) => index === i) ? sorted : null;
}

/** Whether each token has its log probability. */
function isEven({
  token_ids: { length },
  logprobs,
  sampling_logprobs: drawn,
}: z.infer<typeof Completions>['choices'][number]): boolean {
  return logprobs.token_logprobs.length === length && (drawn == null || drawn.length === length);
}

function bothLogprobs(
  { logprobs: { token_logprobs: told }, sampling_logprobs: drawn }: z.infer<typeof Completions>['choices'][number],
  tellsSamplers: boolean,
): Pick<Sample, 'logprobs' | 'samplingLogprobs'> {
  if (drawn) return { logprobs: told, samplingLogprobs: drawn };
  return tellsSamplers ? { logprobs: null, samplingLogprobs: told } : { logprobs: told };
}

const PromptLogprobs = z.object({
  choices: z.array(
    z.object({
      index: z.int().nullish(),
      prompt_logprobs: z.array(z.record(z.string(), z.object({ logprob: logprobIn })).nullable()),
    }),
  ),
});

/** The log probabilities of the prompts of a `/v1/completions`, each token's own; 0 for the first. */
export function promptLogprobsIn(answer: unknown, prompts: readonly (readonly number[])[], root: string): number[][] {
  requireChoices(answer, root);
  const read = PromptLogprobs.safeParse(answer);
  const refuse = (received: string): never => {
    throw new RatchetError(
      'InferenceRejected',
      `${root}/v1/completions: expected prompt_logprobs of every token of ${prompts.length} prompts, got ${received}. A teacher that scores must give them: vLLM and Ratchet's policy server do (prompt_logprobs).`,
    );
  };
  if (!read.success) return refuse(unlike(read.error, answer));
  const choices = inOrder(read.data.choices, prompts.length);
  if (choices === null) return refuse(`${read.data.choices.length} choices`);
  return prompts.map((prompt, p) => {
    const given = choices[p]!.prompt_logprobs;
    if (given.length !== prompt.length) return refuse(`${given.length} for a prompt of ${prompt.length} tokens`);
    return prompt.map((id, t) => {
      const logprob = t === 0 ? 0 : given[t]?.[id]?.logprob;
      return logprob ?? refuse(`none for token ${t} of prompt ${p}, whose id is ${id}`);
    });
  });
}

/** A request to `/v1/chat/completions`. Ids are only requested if needed: many servers refuse unknown fields. */
export function chatBody(request: ChatRequest, model: string): Record<string, unknown> {
  const { messages, tools = [], seed, tokens } = request;
  return {
    model,
    messages,
    ...present({ tools: tools.length === 0 ? undefined : tools }),
    ...samplingBody(request),
    ...present({ seed }),
    ...(tokens === 'required' ? { logprobs: true, return_token_ids: true, cache_salt: request.policy.name } : {}),
  };
}
