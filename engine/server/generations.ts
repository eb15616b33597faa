import type { ToolSchema } from '../../core/rl/rollout.ts';
import { thoughtTokens } from '../speech/families.ts';
import { isThoughtOpen, parsersOf, type SpeechParsers, type SpeechPlace } from '../speech/speech.ts';
import type { Purse } from './admission.ts';
import { chatForm, completionForm, generateForm } from './answers.ts';
import type { AnswerForm } from './generation.ts';
import { type Plan, planSampling } from './plan.ts';
import type { PromptScores } from './prompt-scores.ts';
import { encodePrompts, renderPrompt } from './prompts.ts';
import type { HeldVersion } from './policy-versions.ts';
import type { ChatCompletionRequest, CompletionRequest, GenerateRequest } from './requests.ts';

/** A request that generates, parsed: which version it is for, and how it becomes a plan and an answer. */
export interface Generation {
  /** null = the only version held. */
  readonly model: string | null;
  readonly stream: { readonly includeUsage: boolean } | null;
  readonly plan: (version: HeldVersion, signal: AbortSignal, purse: Purse) => Promise<Plan>;
  readonly form: (plan: Plan, promptScores: readonly PromptScores[] | null) => AnswerForm;
  /** Log probabilities of its prompts are wanted. */
  readonly scoresPrompts?: boolean;
}

/** What OpenAI's API gives when max_tokens is left out of a completion. */
const completionMaxTokensDefault = 16;

export function completionOf(request: CompletionRequest): Generation {
  return {
    model: request.model,
    stream: streamOf(request),
    plan: async (version, signal, purse) =>
      planSampling({
        version,
        prompts: await encodePrompts(version, request.prompt, signal),
        fields: request,
        maxTokens: { asked: request.max_tokens ?? null, otherwise: completionMaxTokensDefault },
        isStream: request.stream === true,
        purse,
      }),
    form: (plan, scores) => completionForm(plan, request, scores),
    scoresPrompts: request.prompt_logprobs != null,
  };
}

/** `chosen` names how the model writes calls and thoughts; otherwise its chat template decides. */
export function chatOf(request: ChatCompletionRequest, chosen: Partial<SpeechParsers> = {}): Generation {
  const hasTools = (request.tools?.length ?? 0) > 0 && request.tool_choice !== 'none';
  const promptOf = (version: HeldVersion): number[] =>
    request.tokens ?? renderPrompt(version, { ...request, messages: request.messages! });
  return {
    model: request.model,
    stream: streamOf(request),
    plan: (version, _, purse) =>
      Promise.resolve().then(() => {
        const prompt = promptOf(version);
        return planSampling({
          version,
          prompts: [prompt],
          fields: request,
          maxTokens: { asked: request.max_completion_tokens ?? request.max_tokens ?? null, otherwise: null },
          isStream: request.stream === true,
          tools: {
            speech: speechOf(version, prompt, request, { hasTools, chosen }),
            singleToolCall: request.parallel_tool_calls === false,
          },
          purse,
        });
      }),
    form: (plan) => chatForm(plan, request),
  };
}

export function generateOf(request: GenerateRequest): Generation {
  return {
    model: request.model ?? null,
    stream: streamOf(request),
    plan: (version, _, purse) =>
      Promise.resolve(
        planSampling({
          version,
          prompts: [request.token_ids],
          fields: request.sampling_params,
          maxTokens: { asked: request.sampling_params.max_tokens ?? null, otherwise: null },
          isStream: request.stream === true,
          purse,
        }),
      ),
    form: (plan) => generateForm(plan, request),
  };
}

/** How what is said is read; null where the model neither has tools nor marks its thoughts. */
function speechOf(
  { model: { tokenizer } }: HeldVersion,
  prompt: readonly number[],
  { tools, chat_template_kwargs: templateArguments }: ChatCompletionRequest,
  { hasTools, chosen }: { readonly hasTools: boolean; readonly chosen: Partial<SpeechParsers> },
): SpeechPlace | null {
  const template = tokenizer.templateText(hasTools);
  const isPlain = chosen.reasoning == null && !thoughtTokens.some((token) => template.includes(token));
  if (!hasTools && isPlain) return null;
  return {
    parsers: parsersOf(template, chosen),
    isThoughtOpen: isThoughtOpen(tokenizer.decode(prompt.slice(-promptEndTokens), { skipSpecialTokens: false })),
    ...(hasTools && tools ? { tools: tools as readonly ToolSchema[] } : {}),
    ...(templateArguments ? { templateArguments } : {}),
  };
}

/** Enough of a prompt to see whether it opens a thought. */
const promptEndTokens = 16;

function streamOf(request: Pick<CompletionRequest, 'stream' | 'stream_options'>): Generation['stream'] {
  return request.stream ? { includeUsage: request.stream_options?.include_usage === true } : null;
}
