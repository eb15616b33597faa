import type { RunSpec } from '../run-spec.ts';
import type { RatchetConfig } from './ratchet.ts';

/** How turns are sampled, in our own words. */
export type WrittenSampling = RatchetConfig['sampling'];
export type WrittenEvalSampling = NonNullable<NonNullable<RatchetConfig['eval']>['sampling']>;

export function laidOver(sampling: WrittenSampling, said: Partial<WrittenEvalSampling>): WrittenSampling {
  const { max_tokens = sampling.max_tokens, temperature = sampling.temperature, ...more } = said;
  return { ...sampling, ...more, max_tokens, temperature };
}

export function samplingSpec(sampling: WrittenSampling): RunSpec['sampling'] {
  const { top_k = -1 } = sampling;
  return {
    maxTokens: sampling.max_tokens,
    ...(sampling.context_tokens === undefined ? {} : { contextTokens: sampling.context_tokens }),
    temperature: sampling.temperature,
    topP: sampling.top_p ?? 1,
    topK: top_k > 0 ? top_k : null,
    minP: sampling.min_p ?? 0,
    repetitionPenalty: sampling.repetition_penalty ?? 1,
    presencePenalty: sampling.presence_penalty ?? 0,
    frequencyPenalty: sampling.frequency_penalty ?? 0,
    minTokens: sampling.min_tokens ?? 0,
    stop: sampling.stop ?? [],
    templateArguments: templateArguments(sampling),
    seed: sampling.seed ?? null,
  };
}

/** Two of them have names of their own, as in Hosted Training. */
function templateArguments({
  enable_thinking,
  reasoning_effort,
  chat_template_kwargs = {},
}: WrittenSampling): RunSpec['sampling']['templateArguments'] {
  return {
    ...chat_template_kwargs,
    ...(enable_thinking === undefined ? {} : { enable_thinking }),
    ...(reasoning_effort === undefined ? {} : { reasoning_effort }),
  };
}
