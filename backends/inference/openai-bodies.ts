import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { shortened } from '../../core/steering.ts';
import { unlike } from '../answer-words.ts';
import type { ChatRequest, ChatSample, Sample, SampleRequest, SamplingModifiers } from './types.ts';

/** Bodies of requests and answers: OpenAI's, with the fields that vLLM and our own server add to them. */

/** vLLM's fields; what is neutral is left to the server's defaults, which are the same. */
export function samplingBody(
  request: SamplingModifiers & Pick<SampleRequest, 'maxTokens' | 'temperature'>,
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
  };
}

/** Of `/v1/completions`: what comes back has ids and logprobs. */
export const withTokenIds = { logprobs: 0, return_token_ids: true };

/** Sums of rounded numbers may end a little above 0. */
const logprobMax = 0.01;
const isLogprob = (value: unknown): boolean => Number.isFinite(value) && (value as number) <= logprobMax;

/** Thousands of numbers in an answer: looked at one by one, without a schema for each. */
const logprobsOf = z.custom<number[]>(
  (value) => Array.isArray(value) && value.every(isLogprob),
  'expected a list of log probabilities: numbers up to 0',
);
const logprobIn = z.custom<number>(isLogprob, 'expected a log probability: a number up to 0');

const ids = z.custom<number[]>(
  (value) => Array.isArray(value) && value.every((id) => Number.isSafeInteger(id) && (id as number) >= 0),
  'expected a list of token ids: whole numbers from 0',
);

const Completions = z.object({
  choices: z.array(
    z.object({
      index: z.int(),
      finish_reason: z.string().nullish(),
      token_ids: ids,
      logprobs: z.object({ token_logprobs: logprobsOf }),
      /** Ours, where the distribution drawn from is not that of the logprobs. */
      sampling_logprobs: logprobsOf.nullish(),
    }),
  ),
});

/** Whether what is drawn from is another distribution than softmax(logits / temperature). */
export function changesDistribution(request: SamplingModifiers): boolean {
  const { topP = 1, topK = null, minP = 0, minTokens = 0 } = request;
  const { repetitionPenalty = 1, presencePenalty = 0, frequencyPenalty = 0 } = request;
  const isCut = topP < 1 || topK !== null || minP > 0 || minTokens > 0;
  return isCut || repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0;
}

/**
 * The samples of an answer of `/v1/completions`, in the order of the prompts. `tellsSamplers`: the log probabilities in it are the
 * sampler's, of a distribution that was changed, where the answer does not tell two of each token.
 */
export function samplesIn(
  answer: unknown,
  {
    count,
    root,
    tellsSamplers = false,
  }: { readonly count: number; readonly root: string; readonly tellsSamplers?: boolean },
): Sample[] {
  const read = Completions.safeParse(answer);
  const uneven = read.data?.choices.find((choice) => !isEven(choice));
  if (!read.success || read.data.choices.length !== count || uneven) {
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
  const inOrder = read.data.choices.toSorted((a, b) => a.index - b.index);
  return inOrder.map((choice) => ({
    tokenIds: choice.token_ids,
    ...bothLogprobs(choice, tellsSamplers),
    finishReason: finishOf(choice.finish_reason, root),
  }));
}

/** Each token has its log probability. */
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
      index: z.int(),
      prompt_logprobs: z.array(z.record(z.string(), z.object({ logprob: logprobIn })).nullable()),
    }),
  ),
});

/** The log probabilities of the prompts of a `/v1/completions`, each token's own; 0 for the first. */
export function promptLogprobsIn(answer: unknown, prompts: readonly (readonly number[])[], root: string): number[][] {
  const read = PromptLogprobs.safeParse(answer);
  const refuse = (received: string): never => {
    throw new RatchetError(
      'InferenceRejected',
      `${root}/v1/completions: expected prompt_logprobs of every token of ${prompts.length} prompts, got ${received}. A teacher that scores must give them: vLLM and Ratchet's policy server do (prompt_logprobs).`,
    );
  };
  if (!read.success) return refuse(unlike(read.error, answer));
  const inOrder = read.data.choices.toSorted((a, b) => a.index - b.index);
  if (inOrder.length !== prompts.length) return refuse(`${inOrder.length} choices`);
  return prompts.map((prompt, p) => {
    const given = inOrder[p]!.prompt_logprobs;
    if (given.length !== prompt.length) return refuse(`${given.length} for a prompt of ${prompt.length} tokens`);
    return prompt.map((id, t) => {
      const logprob = t === 0 ? 0 : given[t]?.[id]?.logprob;
      return logprob ?? refuse(`none for token ${t} of prompt ${p}, whose id is ${id}`);
    });
  });
}

/** Everything but a limit is an end of its own, unless the server gave the request up. */
function finishOf(reason: string | null | undefined, root: string): 'stop' | 'length' {
  if (reason === 'length') return 'length';
  if (reason === 'stop' || reason === 'tool_calls') return 'stop';
  if (reason === 'abort') {
    throw new RatchetError(
      'InferenceUnavailable',
      `${root} gave a generation up before its end (finish_reason "abort").`,
    );
  }
  throw new RatchetError(
    'InferenceRejected',
    `${root} ended a turn for a reason that is not known: ${shortened(String(reason))}.`,
  );
}

/** The same of an API that need not say: an answer that was filtered, or ended for no reason it gives, is an answer. */
function endOfAnswer(reason: string | null | undefined, root: string): 'stop' | 'length' {
  return reason == null || reason === 'content_filter' || reason === 'function_call' ? 'stop' : finishOf(reason, root);
}

/** A request to `/v1/chat/completions`. Ids are asked for only where they are needed: many servers refuse fields they do not know. */
export function chatBody(request: ChatRequest, model: string): Record<string, unknown> {
  const { messages, tools = [], seed, tokens } = request;
  return {
    model,
    messages,
    ...(tools.length === 0 ? {} : { tools }),
    ...samplingBody(request),
    ...(seed === undefined ? {} : { seed }),
    ...(tokens === 'required' ? { logprobs: true, return_token_ids: true, cache_salt: request.policy.name } : {}),
  };
}

const ChatCompletion = z.object({
  choices: z
    .array(
      z.object({
        finish_reason: z.string().nullish(),
        message: z.object({
          content: z.string().nullish(),
          /** What it thought, where the server tells it apart. */
          reasoning_content: z.string().nullish(),
          reasoning: z.string().nullish(),
          tool_calls: z.array(z.object({ function: z.object({ name: z.string(), arguments: z.string() }) })).nullish(),
        }),
        token_ids: ids.nullish(),
        logprobs: z.object({ content: z.array(z.object({ logprob: z.number() })).nullish() }).nullish(),
      }),
    )
    .length(1),
  prompt_token_ids: ids.nullish(),
  usage: z.object({ prompt_tokens: z.int(), completion_tokens: z.int() }).nullish(),
});

/** The turn in an answer of `/v1/chat/completions`. Throws `InferenceRejected` where ids are needed and it has none. */
export function turnIn(answer: unknown, { tokens }: Pick<ChatRequest, 'tokens'>, root: string): ChatSample {
  const where = `${root}/v1/chat/completions`;
  const read = ChatCompletion.safeParse(answer);
  if (!read.success) {
    const received = unlike(read.error, answer);
    throw new RatchetError(
      'InferenceRejected',
      `${where}: expected a chat completion with one choice, got ${received}.`,
    );
  }
  const { choices, prompt_token_ids: promptTokenIds = null, usage } = read.data;
  const { message, finish_reason: finish, token_ids: tokenIds = null, logprobs } = choices[0]!;
  const sampled = logprobs?.content?.map(({ logprob }) => logprob) ?? null;
  const isWhole = tokenIds !== null && sampled?.length === tokenIds.length && sampled.every(isLogprob);
  if (tokens === 'required' && (!promptTokenIds || !isWhole)) {
    const missing =
      !promptTokenIds || !tokenIds ? 'without token ids' : 'whose logprobs are not one up to 0 for each token';
    throw new RatchetError(
      'InferenceRejected',
      `${where} answered ${missing}, which will do for evaluations and not for training: what is trained on are the ids that were sampled, never a guess from the text. vLLM gives them (return_token_ids), as does Ratchet's policy server.`,
    );
  }
  const toolCalls = message.tool_calls?.map((call) => call.function) ?? [];
  const reasoning = message.reasoning_content ?? message.reasoning ?? '';
  return {
    text: message.content ?? '',
    ...(reasoning === '' ? {} : { reasoning }),
    ...(toolCalls.length === 0 ? {} : { toolCalls }),
    finishReason: tokens === 'none' ? endOfAnswer(finish, root) : finishOf(finish, root),
    promptTokenIds,
    tokenIds,
    logprobs: tokenIds === null ? null : sampled,
    usage: usage ? { promptTokens: usage.prompt_tokens, completionTokens: usage.completion_tokens } : null,
  };
}
