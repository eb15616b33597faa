import { z } from 'zod';
import { stringifyExact } from '../../../../core/exact-json.ts';
import { present } from '../../../../core/present.ts';
import type { ChatMessage, ToolSchema } from '../../../../core/rl/rollout/rollout.ts';
import { errorBody } from '../../../../engine/server/http-error.ts';
import {
  type ChatMessages,
  chatMessages,
  type ChatTools,
  chatTools,
  stopStrings,
} from '../../../../engine/server/request-parts.ts';
import type { ApiForm, ModelAnswer, ModelCall } from './model-call.ts';
import { namesIn, passedOn, readBody, refuse, unhonouredIn } from './request-fields.ts';

/** OpenAI's chat completions: POST /v1/chat/completions. */

const Request = z.looseObject({
  model: z.string(),
  messages: chatMessages,
  tools: chatTools.nullish(),
  tool_choice: z.unknown().optional(),
  max_tokens: z.int().min(1).nullish(),
  max_completion_tokens: z.int().min(1).nullish(),
  stop: stopStrings.nullish(),
  stream: z.boolean().nullish(),
  stream_options: z.looseObject({ include_usage: z.boolean().nullish() }).nullish(),
  n: z.int().min(1).nullish(),
  logprobs: z.boolean().nullish(),
});

const passed = ['temperature', 'top_p', 'seed', 'stop', 'response_format', 'reasoning_effort', 'tool_choice'];

export const chatForm: ApiForm = {
  read(body) {
    const { read, all } = readBody(Request, body);
    if (read.n != null && read.n > 1) refuse(`"n": expected 1, got ${read.n}. Ask again for another answer.`, 'n');
    if (all['functions'] != null) refuse('"functions" is not supported; send "tools".', 'functions');
    const chosen = chosenTools(toolSchemas(read.tools ?? []), read.tool_choice);
    return {
      model: read.model,
      messages: read.messages.map(chatMessage),
      tools: chosen.tools,
      ...present({
        maxTokens: read.max_completion_tokens ?? read.max_tokens ?? undefined,
        stop: read.stop ?? undefined,
      }),
      isStreamed: read.stream === true,
      fields: passedOn(all, passed),
      unhonoured: [...unhonouredIn(all, namesIn(Request)), ...chosen.unhonoured],
      asked: { logprobs: read.logprobs === true, usage: read.stream_options?.include_usage === true },
    };
  },
  whole: (answer, { asked }) => ({
    ...envelope(answer, 'chat.completion'),
    choices: [
      {
        index: 0,
        message: {
          role: 'assistant',
          content: contentBeside(answer),
          refusal: null,
          ...(answer.reasoning === '' ? {} : { reasoning_content: answer.reasoning }),
          ...(answer.calls.length === 0 ? {} : { tool_calls: answer.calls }),
        },
        logprobs: logprobsOf(answer, asked),
        finish_reason: finishOf(answer),
      },
    ],
    usage: usageOf(answer),
  }),
  events(answer, { asked }) {
    const chunk = (delta: object, more: object = {}) => ({
      data: {
        ...envelope(answer, 'chat.completion.chunk'),
        choices: [{ index: 0, delta, logprobs: null, finish_reason: null, ...more }],
      },
    });
    const calls = answer.calls.map((call, index) => ({ index, ...call }));
    return [
      chunk({ role: 'assistant', content: '' }),
      ...(answer.reasoning === '' ? [] : [chunk({ reasoning_content: answer.reasoning })]),
      ...(answer.content === '' ? [] : [chunk({ content: answer.content }, { logprobs: logprobsOf(answer, asked) })]),
      ...calls.map((call) => chunk({ tool_calls: [call] })),
      chunk({}, { finish_reason: finishOf(answer) }),
      ...(asked['usage'] === true
        ? [{ data: { ...envelope(answer, 'chat.completion.chunk'), choices: [], usage: usageOf(answer) } }]
        : []),
    ];
  },
  error: errorBody,
  ending: '[DONE]',
};

/** Tools that the model is told of. A call that must be made would need sampling within a grammar. */
export function chosenTools(
  tools: readonly ToolSchema[],
  choice: unknown,
): { readonly tools: readonly ToolSchema[]; readonly unhonoured: readonly string[] } {
  const { type = choice } = (typeof choice === 'object' && choice !== null ? choice : {}) as { type?: unknown };
  if (type === 'none') return { tools: [], unhonoured: [] };
  const isFree = type === null || type === undefined || type === 'auto';
  return { tools, unhonoured: isFree ? [] : ['tool_choice'] };
}

function toolSchemas(tools: ChatTools): ToolSchema[] {
  return tools.map(({ function: { name, description, parameters, ...more } }) => ({
    type: 'function',
    function: {
      name,
      description: description ?? '',
      parameters: parameters ?? { type: 'object', properties: {} },
      ...(typeof more['strict'] === 'boolean' ? { strict: more['strict'] } : {}),
    },
  }));
}

/** The fields that a chat template reads. */
function chatMessage(message: ChatMessages[number]): ChatMessage {
  const { role, content, tool_calls: calls } = message;
  const { tool_call_id: answers, name } = message as { readonly tool_call_id?: unknown; readonly name?: unknown };
  return {
    role,
    content,
    ...(calls == null || calls.length === 0
      ? {}
      : {
          tool_calls: calls.map((call) => ({
            id: typeof call['id'] === 'string' ? call['id'] : '',
            type: 'function',
            function: {
              name: call.function.name,
              arguments:
                typeof call.function.arguments === 'string'
                  ? call.function.arguments
                  : stringifyExact(call.function.arguments),
            },
          })),
        }),
    ...(typeof answers === 'string' ? { tool_call_id: answers } : {}),
    ...(typeof name === 'string' ? { name } : {}),
  };
}

function envelope({ id, model, createdS }: ModelAnswer, object: string): Record<string, unknown> {
  return { id: `chatcmpl-${id}`, object, created: createdS, model };
}

function contentBeside({ content, calls }: ModelAnswer): string | null {
  return content === '' && calls.length > 0 ? null : content;
}

function finishOf({ finishReason, calls }: ModelAnswer): string {
  if (finishReason === 'length') return 'length';
  return calls.length > 0 ? 'tool_calls' : 'stop';
}

function usageOf({ usage: { promptTokens, completionTokens } }: ModelAnswer): Record<string, number> {
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
  };
}

function logprobsOf({ tokens }: ModelAnswer, { logprobs }: ModelCall['asked']): object | null {
  if (logprobs !== true || tokens === null) return null;
  const content = tokens().map(({ text, logprob }) => ({
    token: text,
    logprob,
    bytes: [...Buffer.from(text)],
    top_logprobs: [],
  }));
  return { content, refusal: null };
}
