import type { ToolSchema } from '../../../core/rl/rollout/rollout.ts';
import { thoughtTokens } from '../../speech/families.ts';
import { isThoughtOpen, parsersOf, type SpeechParsers, type SpeechPlace } from '../../speech/speech.ts';
import type { RequestBudget } from './admission.ts';
import { chatForm, completionForm, generateForm } from '../answers.ts';
import type { AnswerForm } from './generation.ts';
import { type Plan, planSampling } from './plan.ts';
import type { PromptScores } from './prompt-scores.ts';
import { encodePrompts, renderPrompt } from './prompts.ts';
import type { HeldVersion } from '../policy-versions.ts';
import type { ChatCompletionRequest, CompletionRequest, GenerateRequest } from '../requests.ts';

/** A parsed request that generates: the version it is for, its plan, and the form of its answer. */
export interface Generation {
  /** null = the only version held. */
  readonly model: string | null;
  readonly stream: { readonly includeUsage: boolean } | null;
  readonly plan: (version: HeldVersion, signal: AbortSignal, budget: RequestBudget) => Promise<Plan>;
  readonly form: (plan: Plan, promptScores: readonly PromptScores[] | null) => AnswerForm;
  /** Log probabilities of its prompts are wanted. */
  readonly scoresPrompts?: boolean;
}

/** OpenAI's default for max_tokens of a completion. */
const completionMaxTokensDefault = 16;

export function completionOf(request: CompletionRequest): Generation {
  return {
    model: request.model,
    stream: streamOf(request),
    plan: async (version, signal, budget) =>
      planSampling({
        version,
        prompts: await encodePrompts(version, request.prompt, signal),
        fields: request,
        maxTokens: { asked: request.max_tokens ?? null, otherwise: completionMaxTokensDefault },
        isStream: request.stream === true,
        budget,
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
    plan: (version, _, budget) =>
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
          budget,
        });
      }),
    form: (plan) => chatForm(plan, request),
  };
}

export function generateOf(request: GenerateRequest): Generation {
  return {
    model: request.model ?? null,
    stream: streamOf(request),
    plan: (version, _, budget) =>
      Promise.resolve(
        planSampling({
          version,
          prompts: [request.token_ids],
          fields: request.sampling_params,
          maxTokens: { asked: request.sampling_params.max_tokens ?? null, otherwise: null },
          isStream: request.stream === true,
          budget,
        }),
      ),
    form: (plan) => generateForm(plan, request),
  };
}

/** How completions are read; null if the model has no tools and marks no thoughts. */
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
