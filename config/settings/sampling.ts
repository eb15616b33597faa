import { z } from 'zod';
import { present } from '../../core/present.ts';
import { args, atLeastZero, choice, flag, fraction, penalty, positive, stopTexts, whole } from '../toml/values.ts';
import type { RatchetConfig } from './index.ts';
import { tokensBound } from './run.ts';
import { inSpec, meaning, namesInSpec, optionalTable, required, setting, specFields, table } from './setting.ts';

/** `[sampling]`: sampling of turns, with vLLM's meaning and order. */

const length = {
  max_tokens: setting(whole(1), 'tokens per turn at most', { default: 512, most: tokensBound }),
  context_tokens: setting(
    whole(1),
    'tokens of a turn’s prompt and answer together at most; the answer may take what its prompt leaves. When missing, `max_tokens` alone applies, and a server refuses a turn that would not fit',
    { isLeftOut: true },
  ),
};
const heat = { temperature: setting(positive(), 'divides the logits; 1 = the policy as it is', { default: 1 }) };

/** Parameters beyond the temperature that change the distribution or the end of a turn. Neutral when missing. */
const modifiers = {
  top_p: setting(
    z.number().positive().max(1).meta({ expected: 'a number > 0 and ≤ 1' }),
    'only the most likely tokens with this much probability together',
    { neutral: 1 },
  ),
  top_k: setting(
    z.union([z.literal(-1), z.literal(0), z.int().min(1)]).meta({ expected: 'an integer ≥ 1, or -1 for all tokens' }),
    'only this many most likely tokens',
  ),
  min_p: setting(fraction(), 'only tokens at least this times as likely as the most likely one', { neutral: 0 }),
  repetition_penalty: setting(positive(), 'divides the logits of tokens that occurred', { neutral: 1 }),
  presence_penalty: setting(penalty(), 'taken off the logit of a sampled token once', { neutral: 0 }),
  frequency_penalty: setting(penalty(), 'taken off it once per occurrence', { neutral: 0 }),
  min_tokens: setting(whole(0), 'a turn does not end before', { neutral: 0 }),
  stop: setting(stopTexts(), 'texts that end a turn', { neutral: [] }),
};

const draw = {
  seed: setting(whole(0), 'keys the random numbers of training rollouts; the run’s seed when missing'),
};

/** Variables of the chat template; `chat_template_kwargs` accepts any, the others are names for two of them. */
const template = {
  enable_thinking: setting(flag(), 'variable of the chat template of that name: whether the model thinks aloud'),
  reasoning_effort: setting(
    choice('minimal', 'low', 'medium', 'high'),
    'variable of the chat template of that name: how long the model thinks',
  ),
  chat_template_kwargs: setting(args(), 'further variables of the chat template'),
};

/**
 * Fields with the same names in vLLM's requests, `max_tokens` among them; others become further fields of a request.
 */
const requested = { max_tokens: length.max_tokens, ...heat, ...modifiers, ...draw };
export const requestFields: readonly string[] = [...Object.keys(requested), 'chat_template_kwargs'];
/** Their names in the spec. */
export const requestedNames = namesInSpec(requested);

const course = {
  type: setting(choice('linear', 'cosine'), 'its course', { default: 'linear' }),
  start_temperature: required(positive(), 'of the groups that start from version 0'),
  end_temperature: required(positive(), 'of those that are sampled for the last step; it stays so after it'),
  total_steps: setting(whole(1), 'over how many steps; `max_steps` when missing'),
};

export const sampling = table({
  ...length,
  ...heat,
  ...modifiers,
  ...draw,
  ...template,
  temp_scheduler: optionalTable(course),
});

/** Settings that override those of another table key by key; evaluations may be greedy. */
export const samplingSettings = (
  means: Partial<Record<'max_tokens' | 'temperature' | keyof typeof template, string>>,
) =>
  meaning(
    {
      max_tokens: setting(whole(1), '', { most: tokensBound }),
      temperature: setting(atLeastZero(), ''),
      ...modifiers,
      ...template,
    },
    (key) => (means as Partial<Record<string, string>>)[key] ?? 'the same',
  );

/**
 * Sampling of turns, with vLLM's meaning and order. Behaviour logprobs are those of softmax(logits / temperature);
 * further changes of the distribution are corrected for in the loss (see TrainSample). Fields with a default do not
 * change it.
 */
export const SamplingSpec = z.strictObject({
  ...specFields(length),
  maxTokens: z.int().positive(),
  temperature: z.number().positive(),
  ...specFields(modifiers),
  /** Number of most likely tokens to sample from; null = all of them. */
  topK: z.int().positive().nullable().default(null),
  /** Further variables of the chat template, as vLLM's chat_template_kwargs: `enable_thinking`, `reasoning_effort`. */
  templateArguments: args().default({}),
  ...specFields(draw),
});
export type SamplingSpec = z.infer<typeof SamplingSpec>;

/** The temperature of training rollouts, step by step, in place of `temperature`: `temperatureAt` in core/rl/sampling/schedule.ts. */
export const TemperatureScheduleSpec = z.strictObject(specFields(course));
export type TemperatureScheduleSpec = z.infer<typeof TemperatureScheduleSpec>;

export function temperatureScheduleSpec({ sampling }: RatchetConfig): {
  temperatureSchedule?: TemperatureScheduleSpec;
} {
  const { temp_scheduler: written } = sampling;
  return written === undefined ? {} : { temperatureSchedule: inSpec(course, written) };
}

/** Sampling of turns, in our own words. */
export type WrittenSampling = RatchetConfig['sampling'];
export type WrittenEvalSampling = NonNullable<NonNullable<RatchetConfig['eval']>['sampling']>;

export function laidOver(under: WrittenSampling, said: Partial<WrittenEvalSampling> = {}): WrittenSampling {
  const { max_tokens = under.max_tokens, temperature = under.temperature, ...more } = said;
  return { ...under, ...more, max_tokens, temperature };
}

/** Two variables of the template have names of their own, as in Hosted Training. */
export function samplingSpec(written: WrittenSampling): SamplingSpec {
  const { top_k = -1, enable_thinking, reasoning_effort, chat_template_kwargs } = written;
  return {
    ...inSpec({ ...length, ...heat, ...modifiers, ...draw }, written),
    topK: top_k > 0 ? top_k : null,
    templateArguments: {
      ...chat_template_kwargs,
      ...present({ enable_thinking, reasoning_effort }),
    },
  };
}
