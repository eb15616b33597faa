import { z } from 'zod';
import { stringifyExact } from '../../../../core/exact-json.ts';
import { present } from '../../../../core/present.ts';
import type { ChatMessage, ToolSchema } from '../../../../core/rl/rollout/rollout.ts';
import { errorBody } from '../../../../engine/server/http-error.ts';
import {
  chatHistory,
  type ChatMessages,
  type ChatTools,
  chatTools,
  stopStrings,
} from '../../../../engine/server/request-parts.ts';
import { answerFormat, chosenTools } from './constraints.ts';
import type { ApiForm, ModelAnswer, ModelCall } from './model-call.ts';
import { namesIn, passedOn, readBody, refuse, unreadIn } from './request-fields.ts';

/** OpenAI's chat completions: POST /v1/chat/completions. */

const Request = z.looseObject({
  model: z.string(),
  messages: chatHistory,
  tools: chatTools.nullish(),
  tool_choice: z.unknown().optional(),
  response_format: z.unknown().optional(),
  max_tokens: z.int().min(1).nullish(),
  max_completion_tokens: z.int().min(1).nullish(),
  stop: stopStrings.nullish(),
  stream: z.boolean().nullish(),
  stream_options: z.looseObject({ include_usage: z.boolean().nullish() }).nullish(),
  n: z.int().min(1).nullish(),
  logprobs: z.boolean().nullish(),
});

const read = namesIn(Request);
/** Fields that have an effect on another model, beside those that are not read here. */
const passed = ['stop', 'response_format', 'tool_choice'];

export const chatForm: ApiForm = {
  read(body) {
    const { read: given, all } = readBody(Request, body);
    if (given.n != null && given.n > 1) refuse(`"n": expected 1, got ${given.n}. Ask again for another answer.`, 'n');
    if (all['functions'] != null) refuse('"functions" is not supported; send "tools".', 'functions');
    const { tools, constraints } = chosenTools(toolSchemas(given.tools ?? []), given.tool_choice);
    const others = Object.keys(all).filter((name) => !read.has(name));
    return {
      model: given.model,
      messages: given.messages.map(chatMessage),
      tools,
      ...present({
        maxTokens: given.max_completion_tokens ?? given.max_tokens ?? undefined,
        stop: given.stop ?? undefined,
      }),
      constraints: { ...constraints, ...answerFormat(given.response_format, 'response_format') },
      isStreamed: given.stream === true,
      fields: passedOn(all, [...passed, ...others]),
      ...unreadIn(all, read),
      asked: { logprobs: given.logprobs === true, usage: given.stream_options?.include_usage === true },
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
function chatMessage(message: ChatMessages[number], i: number): ChatMessage {
  const { role, content, tool_calls: calls } = message;
  for (const field of ['function_call', 'audio'])
    if (message[field] != null) refuse(`"messages.${i}.${field}" is not supported; send "tool_calls" and texts.`, `messages.${i}.${field}`); // prettier-ignore
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
  return logprobs !== true || tokens === null ? null : { content: tokenLogprobs(tokens), refusal: null };
}

/** Sampled tokens with their log probabilities, as both of OpenAI's APIs write them. */
export function tokenLogprobs(tokens: NonNullable<ModelAnswer['tokens']>): object[] {
  return tokens().map(({ text, logprob }) => ({
    token: text,
    logprob,
    bytes: [...Buffer.from(text)],
    top_logprobs: [],
  }));
}
