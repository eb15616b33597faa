import { present } from '../../../core/present.ts';
import { randomInt } from 'node:crypto';
import { hash32 } from '../../../core/random.ts';
import { requestCheckedTokensMax, requestChoicesMax, requestTokensMax, streamChoicesMax } from '../../limits.ts';
import type { SequenceRequest } from '../../sample/sequence-request.ts';
import type { RequestBudget } from './admission.ts';
import type { ChoiceOptions } from './choice.ts';
import { HttpError } from '../http-error.ts';
import type { HeldVersion } from '../policy-versions.ts';
import type { SamplingFields } from '../requests.ts';

/** The samples of one HTTP request: its choices in prompt-major order. */
export interface Plan {
  readonly version: HeldVersion;
  readonly prompts: readonly (readonly number[])[];
  readonly requests: readonly SequenceRequest[];
  readonly choice: ChoiceOptions;
}

interface PlanInput {
  readonly version: HeldVersion;
  readonly prompts: readonly (readonly number[])[];
  readonly fields: SamplingFields;
  /** null = as many as the model has positions for. */
  readonly maxTokens: { readonly asked: number | null; readonly otherwise: number | null };
  readonly isStream: boolean;
  readonly tools?: Pick<ChoiceOptions, 'speech' | 'singleToolCall'>;
  readonly budget: RequestBudget;
}

/** Throws for requests that cannot be sampled, before any sampling. */
export function planSampling(input: PlanInput): Plan {
  const { version, prompts, fields, budget } = input;
  const n = fields.n ?? 1;
  const maxTokens = prompts.map((prompt) => maxTokensOf(prompt, input));
  requireAffordable(input, maxTokens);
  const endTokenIds = fields.ignore_eos ? [] : version.model.config.endTokenIds;
  const common = commonOf(fields, endTokenIds);
  const seeds = seedsOf(fields, prompts.length * n);
  const requests = seeds.map((seed, index): SequenceRequest => {
    const p = Math.floor(index / n);
    return { ...common, promptTokenIds: prompts[p]!, maxTokens: maxTokens[p]!, seed };
  });
  for (let index = 0; index < requests.length; index += n) version.sampler.requireSampleable(requests[index]!);
  budget.takeTokens(prompts.reduce((sum, prompt, p) => sum + prompt.length + n * maxTokens[p]!, 0));
  return { version, prompts, requests, choice: choiceOptionsOf(input, endTokenIds) };
}

function commonOf(
  fields: SamplingFields,
  endTokenIds: readonly number[],
): Omit<SequenceRequest, 'promptTokenIds' | 'maxTokens' | 'seed'> {
  return {
    temperature: fields.temperature ?? 1,
    stopTokenIds: [...new Set([...endTokenIds, ...(fields.stop_token_ids ?? [])])],
    ...present({
      minTokens: fields.min_tokens ?? undefined,
      topP: fields.top_p ?? undefined,
      topK: fields.top_k ?? undefined,
      minP: fields.min_p ?? undefined,
      repetitionPenalty: fields.repetition_penalty ?? undefined,
      presencePenalty: fields.presence_penalty ?? undefined,
      frequencyPenalty: fields.frequency_penalty ?? undefined,
      logitBias: fields.logit_bias ?? undefined,
      allowedTokenIds: fields.allowed_token_ids ?? undefined,
    }),
  };
}

function choiceOptionsOf({ version, fields, tools }: PlanInput, endTokenIds: readonly number[]): ChoiceOptions {
  const stopTokenIds = fields.stop_token_ids ?? [];
  return {
    tokenizer: version.model.tokenizer,
    stopTokenIds,
    endingTokenIds: [...endTokenIds, ...stopTokenIds],
    stops: fields.stop ?? [],
    includeStop: fields.include_stop_str_in_output ?? false,
    skipSpecialTokens: fields.skip_special_tokens ?? true,
    minTokens: fields.min_tokens ?? 0,
    speech: tools?.speech ?? null,
    singleToolCall: tools?.singleToolCall ?? false,
  };
}

/** The message begins like vLLM's, by which verifiers recognizes an overlong prompt. */
function maxTokensOf(prompt: readonly number[], { version, maxTokens }: PlanInput): number {
  const { positionsMax } = version.model.config;
  const room = positionsMax - prompt.length;
  const wanted = maxTokens.asked ?? Math.max(1, Math.min(room, maxTokens.otherwise ?? room));
  if (wanted <= room) return wanted;
  throw new HttpError(
    400,
    `This model's maximum context length is ${positionsMax} tokens. The prompt has ${prompt.length} and max_tokens asks ` +
      `for ${wanted} more. Shorten the prompt or lower max_tokens.`,
    { param: maxTokens.asked === null ? 'prompt' : 'max_tokens', code: 'context_length_exceeded' },
  );
}

function requireAffordable({ prompts, fields, isStream }: PlanInput, maxTokens: readonly number[]): void {
  const n = fields.n ?? 1;
  const count = prompts.length * n;
  const refuse = (message: string): never => {
    throw new HttpError(400, message, { param: 'n' });
  };
  const choicesMax = isStream ? streamChoicesMax : requestChoicesMax;
  if (count > choicesMax)
    refuse(`The request asks for ${count} choices${isStream ? ' in a stream' : ''}; at most ${choicesMax}.`);
  const tokens = n * maxTokens.reduce((sum, max) => sum + max, 0);
  if (tokens > requestTokensMax) {
    refuse(
      `The request asks for up to ${tokens} tokens (choices × max_tokens); at most ${requestTokensMax}. Send several requests.`,
    );
  }
  const listed = (fields.allowed_token_ids?.length ?? 0) + (fields.logit_bias?.size ?? 0);
  const checked = n * prompts.reduce((sum, prompt) => sum + prompt.length + listed, 0);
  if (checked > requestCheckedTokensMax) {
    refuse(
      `The request has ${checked} token ids to look at (choices × prompt, allowed and biased tokens); at most ` +
        `${requestCheckedTokensMax}. Send several requests.`,
    );
  }
}

/** A single choice uses the seed itself; several get seeds derived from it. */
function seedsOf({ seed, seeds }: SamplingFields, count: number): number[] {
  if (seeds && seeds.length !== count) {
    throw new HttpError(400, `"seeds" must have one seed per choice: expected ${count}, got ${seeds.length}.`, {
      param: 'seeds',
    });
  }
  if (seeds) return seeds;
  const root = seed ?? randomInt(2 ** 47);
  return count === 1 ? [root] : Array.from({ length: count }, (_, index) => hash32('choice', root, index));
}
