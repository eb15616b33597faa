import { z } from 'zod';

export type JsonValue = string | number | boolean | null | JsonValue[] | { [key: string]: JsonValue };
const jsonValue: z.ZodType<JsonValue> = z.json();

export const args = z.record(z.string(), jsonValue);
const positive = z.int().positive();

/**
 * How turns are sampled; vLLM's meaning and order. Behaviour logprobs are those of softmax(logits / temperature); what
 * changes the distribution further is corrected for in the loss (see TrainSample). Fields with a default leave it alone.
 */
export const SamplingSpec = z.strictObject({
  /** Per turn. */
  maxTokens: positive,
  /** Of a turn's prompt and answer together: the answer may take what its prompt leaves. Missing = maxTokens alone holds. */
  contextTokens: positive.optional(),
  temperature: z.number().positive(),
  /** Probability mass of the most likely tokens that may be drawn; 1 = all of them. */
  topP: z.number().positive().max(1).default(1),
  /** How many of the most likely tokens may be drawn; null = all of them. */
  topK: positive.nullable().default(null),
  /** Tokens less likely than this times the most likely one are not drawn. */
  minP: z.number().min(0).max(1).default(0),
  /** Divides the logits of tokens that occurred, or multiplies the negative ones; 1 = none. */
  repetitionPenalty: z.number().positive().default(1),
  /** Taken off the logit of a sampled token once, and once per occurrence. */
  presencePenalty: z.number().min(-2).max(2).default(0),
  frequencyPenalty: z.number().min(-2).max(2).default(0),
  /** A turn does not end before. */
  minTokens: z.int().min(0).default(0),
  /** Texts that end a turn. */
  stop: z.array(z.string().min(1)).default([]),
  /** Further variables of the chat template, as vLLM's chat_template_kwargs: `enable_thinking`, `reasoning_effort`. */
  templateArguments: args.default({}),
  /** Keys the random numbers of training rollouts in place of the run's seed; null = the run's seed. */
  seed: z.int().min(0).nullable().default(null),
});
export type SamplingSpec = z.infer<typeof SamplingSpec>;
