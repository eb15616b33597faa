import { z } from 'zod';
import { quantizations } from '../model/quantizations.ts';
import { minutePattern } from '../../core/minute-of.ts';
import { HttpError } from './http-error.ts';
import { refuseUnhonoured } from './fixed-parameters.ts';
import { shortened } from './json.ts';
import {
  allowedTokenIdList,
  chatMessages,
  chatTools,
  described,
  logitBias,
  promptInput,
  seedList,
  stopStrings,
  stopTokenIdList,
  streamOptions,
  templateArguments,
  tokenIdList,
} from './request-parts.ts';

/** Bodies of requests: OpenAI's, vLLM's and, where marked, ours. */

const modelName = z.string().min(1).max(256);

/** vLLM's sampling parameters. */
const samplingFields = {
  n: z.int().min(1).nullish(),
  max_tokens: z.int().min(1).nullish(),
  min_tokens: z.int().min(0).nullish(),
  temperature: z.number().min(0).max(100).nullish(),
  top_p: z.number().gt(0).max(1).nullish(),
  top_k: z.int().min(-1).nullish(),
  min_p: z.number().min(0).max(1).nullish(),
  repetition_penalty: z.number().gt(0).nullish(),
  presence_penalty: z.number().min(-2).max(2).nullish(),
  frequency_penalty: z.number().min(-2).max(2).nullish(),
  logit_bias: logitBias.nullish(),
  allowed_token_ids: allowedTokenIdList.nullish(),
  stop: stopStrings.nullish(),
  stop_token_ids: stopTokenIdList.nullish(),
  ignore_eos: z.boolean().nullish(),
  include_stop_str_in_output: z.boolean().nullish(),
  skip_special_tokens: z.boolean().nullish(),
  seed: z.int().nullish(),
  /** Ours: one seed per choice, in the order of the choices. Wins over `seed`. */
  seeds: seedList.nullish(),
};
export type SamplingFields = z.infer<z.ZodObject<typeof samplingFields>>;

const answerFields = {
  stream: z.boolean().nullish(),
  stream_options: streamOptions.nullish(),
  /** vLLM's: adds prompt_token_ids and token_ids to the answer. */
  return_token_ids: z.boolean().nullish(),
  /** vLLM's: tokens beside logprobs are written as "token_id:5". */
  return_tokens_as_token_ids: z.boolean().nullish(),
};

/** 0 or 1: the sampled token's own; alternatives are not given. */
const ownLogprob = z.int().min(0).max(1);

export const CompletionRequest = z.object({
  model: modelName,
  prompt: promptInput,
  ...samplingFields,
  ...answerFields,
  logprobs: ownLogprob.nullish(),
  /** vLLM's: 0 or 1 = of each token of the prompt its own. */
  prompt_logprobs: ownLogprob.nullish(),
});
export type CompletionRequest = z.infer<typeof CompletionRequest>;

const toolChoice = z.union(
  [
    z.enum(['none', 'auto', 'required']),
    z.looseObject({ type: z.literal('function'), function: z.looseObject({ name: z.string() }) }),
  ],
  { error: 'expected "none" or "auto"' },
);

const chatFields = {
  model: modelName,
  ...samplingFields,
  ...answerFields,
  max_completion_tokens: z.int().min(1).nullish(),
  logprobs: z.boolean().nullish(),
  tools: chatTools.nullish(),
  tool_choice: toolChoice.nullish(),
  parallel_tool_calls: z.boolean().nullish(),
  /** vLLM's: variables of the chat template, such as enable_thinking. */
  chat_template_kwargs: templateArguments.nullish(),
};

export const ChatCompletionRequest = z.object({ ...chatFields, messages: chatMessages });

/** prime-rl's /v1/chat/completions/tokens: `tokens` is the prompt, whatever the messages would have become. */
const ChatTokensRequest = z.object({
  ...chatFields,
  messages: chatMessages.nullish(),
  tokens: tokenIdList.nullish(),
});
export type ChatCompletionRequest = z.infer<typeof ChatTokensRequest>;

const generateSampling = z.object({ ...samplingFields, logprobs: ownLogprob.nullish() });

/** vLLM's /inference/v1/generate: token ids in, token ids out. */
export const GenerateRequest = z.object({
  /** May be left out while a single version is held. */
  model: modelName.nullish(),
  request_id: z.string().min(1).max(256).nullish(),
  token_ids: tokenIdList,
  sampling_params: generateSampling,
  stream: z.boolean().nullish(),
  stream_options: streamOptions.nullish(),
});
export type GenerateRequest = z.infer<typeof GenerateRequest>;

/** vLLM's /tokenize. */
export const TokenizeRequest = z.object({
  model: modelName.nullish(),
  prompt: z.string().nullish(),
  messages: chatMessages.nullish(),
  tools: chatTools.nullish(),
  chat_template_kwargs: templateArguments.nullish(),
  add_special_tokens: z.boolean().nullish(),
  add_generation_prompt: z.boolean().nullish(),
  return_token_strs: z.boolean().nullish(),
});
export type TokenizeRequest = z.infer<typeof TokenizeRequest>;

export const DetokenizeRequest = z.object({ model: modelName.nullish(), tokens: allowedTokenIdList });
export type DetokenizeRequest = z.infer<typeof DetokenizeRequest>;

const sha256Text = z.string().regex(/^[0-9a-f]{64}$/, { error: 'expected a SHA-256, 64 hexadecimal digits' });

export const UpdateWeightsRequest = z.strictObject({
  /** Absolute path of a Hugging Face folder below an allowed root. */
  weight_dir: z.string().min(1).max(4096),
  name: modelName,
  /** Device for sampling; the server's by default. */
  provider: z.enum(['cpu', 'cuda']).optional(),
  /** Bits in which its weights are sampled; as they are when left out. */
  quantize: z.enum(quantizations).optional(),
  /** Memory budget of the whole server in GB; the server's own default if left out. Among several versions the largest counts. */
  memory_gb: z.number().positive().optional(),
  /** SHA-256 of the flat weights, hex; or what another engine calls the version, which is then recognized by `sums`. */
  digest: sha256Text.optional(),
  /** SHA-256 of SHA256SUMS in the folder, which lists the version's files with theirs. */
  sums: sha256Text.optional(),
  /** Time that strftime_now gives the chat template, without a zone; the clock's by default. */
  template_time: z.string().regex(minutePattern, { error: 'expected a time such as 2026-11-26T14:05' }).optional(),
  /** The optimizer step that made the version; shown by GET /v1/models. */
  step: z.int().min(0).optional(),
});
export type UpdateWeightsRequest = z.infer<typeof UpdateWeightsRequest>;

const holder = z.string().min(1).max(1024);

/** Keeps a held version for this time, whatever is loaded after it; a repeated request extends the time. */
export const HoldVersionRequest = z.strictObject({
  name: modelName,
  /** A version is kept as long as it has a holder. */
  holder,
  seconds: z.number().positive().max(86_400),
});

export const ReleaseVersionRequest = z.strictObject({ name: modelName, holder });

export function parseCompletion(body: unknown): CompletionRequest {
  const request = requireStream(parseHonoured(CompletionRequest, body));
  if (request.prompt_logprobs == null || request.stream !== true) return request;
  throw new HttpError(400, '"prompt_logprobs" is not for streams; leave "stream" out.', { param: 'prompt_logprobs' });
}

export function parseChat(body: unknown): ChatCompletionRequest {
  return requireTools(requireStream(parseHonoured(ChatCompletionRequest, body)));
}

export function parseChatTokens(body: unknown): ChatCompletionRequest {
  const request = requireTools(requireStream(parseHonoured(ChatTokensRequest, body)));
  if (request.tokens || request.messages) return request;
  throw new HttpError(400, 'Expected "tokens" (the prompt as token ids) or "messages", got neither.', {
    param: 'tokens',
  });
}

export function parseGenerate(body: unknown): GenerateRequest {
  const sampling: unknown = isObject(body) ? (body as { sampling_params?: unknown }).sampling_params : undefined;
  if (isObject(sampling)) refuseUnhonoured(sampling, fieldsOf(generateSampling), 'sampling_params.');
  return requireStream(parseHonoured(GenerateRequest, body));
}

/** Refuses keys that the schema does not have, by name, before it checks the values of the others. */
export function parseHonoured<Body>(schema: z.ZodObject<z.ZodRawShape> & z.ZodType<Body>, body: unknown): Body {
  if (isObject(body)) refuseUnhonoured(body, fieldsOf(schema));
  return parseBody(schema, body);
}

export function parseBody<Body>(schema: z.ZodType<Body>, body: unknown): Body {
  const parsed = schema.safeParse(body);
  if (parsed.success) return parsed.data;
  const issues = parsed.error.issues.slice(0, issuesShownMax);
  const param = shortened(issues[0]?.path.join('.') ?? '');
  const message = shortened(issues.map((issue) => sentenceOf(issue, body)).join(' '), messageCharactersMax);
  throw new HttpError(400, message, param ? { param } : {});
}

const issuesShownMax = 3;
const messageCharactersMax = 1000;

/** The parameter, the expected and the received value. */
function sentenceOf({ path, message }: z.core.$ZodIssue, body: unknown): string {
  const name = path.length === 0 ? 'The body' : `"${shortened(path.join('.'))}"`;
  const expected = message
    .replace(/^(Invalid input|Invalid option|Too big|Too small): /, '')
    .replace(/, received .*$/s, '');
  if (expected.includes(', got ')) return `${name}: ${expected}.`;
  const received = path.reduce((value: unknown, key) => (value as Record<PropertyKey, unknown> | null)?.[key], body);
  return `${name}: ${expected}, got ${described(received)}.`;
}

function fieldsOf(schema: z.ZodObject): ReadonlySet<string> {
  return new Set(Object.keys(schema.shape));
}

function isObject(value: unknown): value is object {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function requireStream<Request extends { stream?: boolean | null | undefined; stream_options?: unknown }>(
  request: Request,
): Request {
  if (request.stream || request.stream_options == null) return request;
  throw new HttpError(400, '"stream_options" is for streams; send "stream": true with it.', {
    param: 'stream_options',
  });
}

/** A call that must be made would need sampling within a grammar. */
function requireTools(request: ChatCompletionRequest): ChatCompletionRequest {
  const { tool_choice: choice, tools } = request;
  if (choice == null || choice === 'none') return request;
  if (choice !== 'auto') {
    const message = `"tool_choice" is supported as "auto" and "none" only, got ${shortened(JSON.stringify(choice))}: calls are not enforced.`;
    throw new HttpError(400, message, { param: 'tool_choice', code: 'unsupported_parameter' });
  }
  if (tools && tools.length > 0) return request;
  throw new HttpError(400, '"tool_choice" is "auto" but there are no "tools". Send them, or leave it out.', {
    param: 'tool_choice',
  });
}
