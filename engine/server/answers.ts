import { randomUUID } from 'node:crypto';
import { hash32 } from '../../core/random.ts';
import type { Delta } from './generation/choice.ts';
import type { AnswerForm, FinishedChoice } from './generation/generation.ts';
import type { Plan } from './generation/plan.ts';
import type { PromptScores } from './generation/prompt-scores.ts';
import type { HeldVersion } from './policy-versions.ts';
import type { ChatCompletionRequest, CompletionRequest, GenerateRequest } from './requests.ts';

/** Answers of the generating routes, in OpenAI's and vLLM's forms. */

/** POST /v1/completions */
export function completionForm(
  plan: Plan,
  request: CompletionRequest,
  promptScores: readonly PromptScores[] | null = null,
): AnswerForm {
  const envelope = envelopeOf('cmpl', 'text_completion', plan.version);
  const { logprobs: asked, return_token_ids: tellsIds } = request;
  const nameToken = tokenNamer(plan, request.return_tokens_as_token_ids === true);
  const offsets = plan.requests.map(() => 0);
  const isFirst = firstLook();
  const choiceOf = (index: number, delta: Delta): Record<string, unknown> => ({
    index,
    text: delta.content,
    logprobs: asked == null ? null : logprobsOf(index, delta),
    ...(tellsIds && { token_ids: delta.tokenIds }),
    ...(tellsIds && isFirst(index) && { prompt_token_ids: plan.requests[index]!.promptTokenIds }),
  });
  const logprobsOf = (index: number, { tokenIds, logprobs }: Delta): unknown => {
    const tokens = tokenIds.map(nameToken);
    return {
      tokens,
      token_logprobs: logprobs.map(shortest),
      top_logprobs: tokens.map(() => null),
      text_offset: tokens.map((token) => (offsets[index]! += token.length) - token.length),
    };
  };
  /** Keyed by token id, as in vLLM, which leaves out the first token. */
  const promptLogprobsOf = (index: number): unknown => {
    const prompt = Math.floor((index * plan.prompts.length) / plan.requests.length);
    return promptScores?.[prompt]?.map((logprob, t) => {
      const id = plan.prompts[prompt]![t]!;
      return logprob === null ? null : { [id]: { logprob: shortest(logprob), decoded_token: nameToken(id) } };
    });
  };
  return {
    whole: (choices, usage) => ({
      ...envelope,
      choices: choices.map((choice) => ({
        ...choiceOf(choice.index, choice),
        finish_reason: choice.finishReason,
        stop_reason: choice.stopReason,
        ...(tellsIds && asked != null && samplingLogprobsOf(choice)),
        ...(promptScores && { prompt_logprobs: promptLogprobsOf(choice.index) }),
      })),
      usage,
    }),
    opening: () => null,
    tellsTokens: asked != null || tellsIds === true,
    chunk: (index, delta, ending) => ({
      ...envelope,
      choices: [
        {
          ...choiceOf(index, delta),
          finish_reason: ending?.finishReason ?? null,
          stop_reason: ending?.stopReason ?? null,
        },
      ],
    }),
    usageChunk: (usage) => ({ ...envelope, choices: [], usage }),
  };
}

/** POST /v1/chat/completions and /v1/chat/completions/tokens */
export function chatForm(plan: Plan, request: ChatCompletionRequest): AnswerForm {
  const { logprobs: asked, return_token_ids: tellsIds } = request;
  const nameToken = tokenNamer(plan, request.return_tokens_as_token_ids === true);
  const prompt = plan.prompts[0]!;
  const callCounts = plan.requests.map(() => 0);
  const callsOf = (index: number, { toolCalls }: Delta): ReturnType<typeof callOf>[] =>
    toolCalls.map((call) => callOf(plan, index, callCounts[index]!++, call));
  const commonOf = (index: number, delta: Delta): Record<string, unknown> => ({
    index,
    logprobs: asked ? { content: chatLogprobs(delta, nameToken), refusal: null } : null,
    ...(tellsIds && { token_ids: delta.tokenIds }),
  });
  const wholeEnvelope = envelopeOf('chatcmpl', 'chat.completion', plan.version);
  const chunkEnvelope = { ...wholeEnvelope, object: 'chat.completion.chunk' };
  return {
    whole: (choices, usage) => ({
      ...wholeEnvelope,
      choices: choices.map((choice) => {
        const tool_calls = callsOf(choice.index, choice);
        const content = choice.content === '' && tool_calls.length > 0 ? null : choice.content;
        return {
          ...commonOf(choice.index, choice),
          message: {
            role: 'assistant',
            content,
            refusal: null,
            ...(choice.reasoning !== '' && { reasoning: choice.reasoning }),
            ...(tool_calls.length > 0 && { tool_calls }),
          },
          finish_reason: choice.finishReason,
          stop_reason: choice.stopReason,
          ...(tellsIds && asked && samplingLogprobsOf(choice)),
        };
      }),
      usage,
      ...(tellsIds && { prompt_token_ids: prompt }),
    }),
    opening: (index) => ({
      ...chunkEnvelope,
      choices: [{ index, delta: { role: 'assistant', content: '' }, logprobs: null, finish_reason: null }],
      ...(tellsIds && index === 0 && { prompt_token_ids: prompt }),
    }),
    tellsTokens: asked === true || tellsIds === true,
    chunk: (index, delta, ending) => {
      const told = callCounts[index]!;
      const tool_calls = callsOf(index, delta).map((call, k) => ({ index: told + k, ...call }));
      const said = {
        ...(delta.reasoning !== '' && { reasoning: delta.reasoning }),
        ...(delta.content !== '' && { content: delta.content }),
        ...(tool_calls.length > 0 && { tool_calls }),
      };
      return {
        ...chunkEnvelope,
        choices: [
          {
            ...commonOf(index, delta),
            delta: said,
            finish_reason: ending?.finishReason ?? null,
            stop_reason: ending?.stopReason ?? null,
          },
        ],
      };
    },
    usageChunk: (usage) => ({ ...chunkEnvelope, choices: [], usage }),
  };
}

/** POST /inference/v1/generate */
export function generateForm(plan: Plan, request: GenerateRequest): AnswerForm {
  const envelope = { request_id: request.request_id ?? randomUUID() };
  const nameToken = tokenNamer(plan, true);
  const asked = request.sampling_params.logprobs != null;
  const commonOf = (index: number, delta: Delta): Record<string, unknown> => ({
    index,
    logprobs: asked ? { content: chatLogprobs(delta, nameToken) } : null,
    token_ids: delta.tokenIds,
  });
  return {
    whole: (choices, usage) => ({
      ...envelope,
      choices: choices.map((choice) => ({
        ...commonOf(choice.index, choice),
        finish_reason: choice.finishReason,
        stop_reason: choice.stopReason,
        ...(asked && samplingLogprobsOf(choice)),
      })),
      prompt_logprobs: null,
      usage,
    }),
    opening: () => null,
    tellsTokens: true,
    chunk: (index, delta, ending) => ({
      ...envelope,
      choices: [
        {
          ...commonOf(index, delta),
          finish_reason: ending?.finishReason ?? null,
          stop_reason: ending?.stopReason ?? null,
        },
      ],
    }),
    usageChunk: (usage) => ({ ...envelope, choices: [], usage }),
  };
}

/** Our own field: importance weights need it when the distribution was truncated, penalized or biased. */
function samplingLogprobsOf({ samplingLogprobs }: FinishedChoice): { sampling_logprobs?: number[] } {
  return samplingLogprobs ? { sampling_logprobs: samplingLogprobs.map(shortest) } : {};
}

/** Ids derive from the inputs of the call, so that a repeated request gives the identical answer. */
function callOf(
  plan: Plan,
  index: number,
  k: number,
  call: { name: string; arguments: string },
): {
  id: string;
  type: 'function';
  function: { name: string; arguments: string };
} {
  const { seed, promptTokenIds } = plan.requests[index]!;
  const part = (salt: string): string => hash32(salt, seed, promptTokenIds.length, k).toString(16).padStart(8, '0');
  return { id: `call_${part('tool')}${part('call')}`, type: 'function', function: call };
}

function firstLook(): (index: number) => boolean {
  const seen = new Set<number>();
  return (index) => {
    const isFirst = !seen.has(index);
    seen.add(index);
    return isFirst;
  };
}

function tokenNamer({ version }: Plan, asIds: boolean): (tokenId: number) => string {
  return asIds ? (id) => `token_id:${id}` : (id) => version.model.tokenizer.tokenText(id);
}

/** Nine digits suffice to restore the same 32-bit float, in half the text. */
function shortest(value: number): number {
  return Number(value.toPrecision(9));
}

function chatLogprobs({ tokenIds, logprobs }: Delta, nameToken: (id: number) => string): Record<string, unknown>[] {
  return tokenIds.map((id, i) => {
    const token = nameToken(id);
    return { token, logprob: shortest(logprobs[i]!), bytes: [...Buffer.from(token)], top_logprobs: [] };
  });
}

function envelopeOf(prefix: string, object: string, version: HeldVersion): Record<string, unknown> {
  return {
    id: `${prefix}-${randomUUID()}`,
    object,
    created: Math.floor(Date.now() / 1000),
    model: version.name,
    system_fingerprint: version.digest,
  };
}
