import { z } from 'zod';
import { HttpError } from './http.ts';

/** Bodies of requests. What is not honoured is refused by name, so that nobody trains on samples they did not ask for. */

const tokenIds = z.array(z.int().min(0)).min(1);
const seed = z.int();

const sampling = {
  model: z.string().min(1),
  n: z.int().min(1).nullish(),
  max_tokens: z.int().min(1).nullish(),
  temperature: z.number().min(0).nullish(),
  seed: seed.nullish(),
  /** Ours: one seed per choice, in the order of the choices. Wins over `seed`. */
  seeds: z.array(seed).nullish(),
  /** vLLM's: adds prompt_token_ids and token_ids to the answer. */
  return_token_ids: z.boolean().nullish(),
};

export const CompletionRequest = z.object({
  ...sampling,
  prompt: z.union([z.string(), z.array(z.string()).min(1), tokenIds, z.array(tokenIds).min(1)]),
  /** 0 or 1: the sampled token's own; alternatives are not given. */
  logprobs: z.int().min(0).max(1).nullish(),
});
export type CompletionRequest = z.infer<typeof CompletionRequest>;

const contentPart = z.object({ type: z.literal('text'), text: z.string() });
const messageContent = z
  .union([z.string(), z.array(contentPart)])
  .nullish()
  .transform((content) => (Array.isArray(content) ? content.map((part) => part.text).join('') : (content ?? '')));

export const ChatRequest = z.object({
  ...sampling,
  messages: z
    .array(
      z.looseObject({
        role: z
          .enum(['system', 'developer', 'user', 'assistant', 'tool'])
          .transform((role) => (role === 'developer' ? 'system' : role)),
        content: messageContent,
      }),
    )
    .min(1),
  max_completion_tokens: z.int().min(1).nullish(),
  logprobs: z.boolean().nullish(),
});
export type ChatRequest = z.infer<typeof ChatRequest>;

export const UpdateWeightsRequest = z.strictObject({
  /** Absolute path of a Hugging Face folder below an allowed root. */
  weight_dir: z.string().min(1),
  name: z.string().min(1).max(256),
  /** SHA-256 of the flat weights, hex. */
  digest: z
    .string()
    .regex(/^[0-9a-f]{64}$/)
    .optional(),
  /** The optimizer step that made the version; shown by GET /v1/models. */
  step: z.int().min(0).optional(),
});
export type UpdateWeightsRequest = z.infer<typeof UpdateWeightsRequest>;

/** Keys of OpenAI's and vLLM's APIs that are honoured at these values only, the first being what they mean when absent. */
const fixedValues: Readonly<Record<string, readonly unknown[]>> = {
  stream: [false],
  stream_options: [null],
  top_p: [1],
  top_k: [-1, 0],
  min_p: [0],
  presence_penalty: [0],
  frequency_penalty: [0],
  repetition_penalty: [1],
  logit_bias: [null, {}],
  stop: [null, []],
  stop_token_ids: [null, []],
  min_tokens: [0],
  ignore_eos: [false],
  skip_special_tokens: [true],
  echo: [false],
  best_of: [1],
  suffix: [null],
  tools: [null, []],
  tool_choice: [null, 'none', 'auto'],
  parallel_tool_calls: [null, true, false],
  functions: [null, []],
  response_format: [null, { type: 'text' }],
  top_logprobs: [null, 0],
  modalities: [null, ['text']],
  prompt_logprobs: [null],
  return_tokens_as_token_ids: [false],
  include_stop_str_in_output: [false],
};
/** Keys that by their definition change nothing about the answer. */
const inertKeys = new Set(['user', 'metadata', 'store', 'service_tier', 'safety_identifier', 'prompt_cache_key']);

export function parseSamplingBody<Body>(schema: z.ZodObject<z.ZodRawShape> & z.ZodType<Body>, body: unknown): Body {
  if (typeof body === 'object' && body !== null) refuseUnhonoured(body, new Set(Object.keys(schema.shape)));
  return parseBody(schema, body);
}

export function parseBody<Body>(schema: z.ZodType<Body>, body: unknown): Body {
  const parsed = schema.safeParse(body);
  if (parsed.success) return parsed.data;
  const param = parsed.error.issues[0]?.path.join('.');
  throw new HttpError(400, z.prettifyError(parsed.error), param ? { param } : {});
}

function refuseUnhonoured(body: object, honoured: ReadonlySet<string>): void {
  for (const [key, value] of Object.entries(body)) {
    if (honoured.has(key) || inertKeys.has(key)) continue;
    const allowed = fixedValues[key];
    if (!allowed) throw new HttpError(400, `Unknown parameter "${key}". Leave it out.`, { param: key });
    if (value === null || allowed.some((fixed) => JSON.stringify(fixed) === JSON.stringify(value))) continue;
    const message = `"${key}" is not supported by this server except as ${JSON.stringify(allowed[0])}. Leave it out.`;
    throw new HttpError(400, message, { param: key, code: 'unsupported_parameter' });
  }
}
