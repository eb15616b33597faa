import { z } from 'zod';
import { stringifyExact } from '../../../../core/exact-json.ts';
import { present } from '../../../../core/present.ts';
import type { ChatMessage, ToolSchema } from '../../../../core/rl/rollout/rollout.ts';
import { stopStrings } from '../../../../engine/server/request-parts.ts';
import { chosenTools, constraintFields, schemaFormat } from './constraints.ts';
import type { ApiForm, ModelAnswer, ModelCall, StreamEvent } from './model-call.ts';
import { argumentsObject, type Fields, namesIn, passedOn, readBody, refuse, unreadIn } from './request-fields.ts';

/** Anthropic's messages: POST /v1/messages. */

const block = z.looseObject({ type: z.string() });
const blocks = z.union([z.string(), z.array(block)], { error: 'expected a text or a list of blocks' });
const Request = z.looseObject({
  model: z.string(),
  messages: z.array(z.looseObject({ role: z.enum(['user', 'assistant', 'system']), content: blocks })).min(1),
  system: blocks.nullish(),
  tools: z.array(z.looseObject({ name: z.string() })).nullish(),
  tool_choice: z.unknown().optional(),
  max_tokens: z.int().min(1).nullish(),
  stop_sequences: stopStrings.nullish(),
  stream: z.boolean().nullish(),
  output_config: z.looseObject({ format: z.unknown().optional() }).nullish(),
  output_format: z.unknown().optional(),
});

const known = namesIn(Request);

export const messagesForm: ApiForm = {
  read(body) {
    const { read, all } = readBody(Request, body);
    const system = read.system == null ? '' : textOf(read.system, 'system');
    requireQuestion(read.messages);
    const ignored: string[] = [];
    const told = (read.tools ?? []).flatMap((tool) => toolsIn(tool, ignored));
    const { tools, constraints: choice } = chosenTools(told, read.tool_choice);
    if ((read.tool_choice as Fields | null | undefined)?.['disable_parallel_tool_use'] === true)
      ignored.push('tool_choice.disable_parallel_tool_use');
    const { format, ...effort } = read.output_config ?? {};
    ignored.push(...Object.keys(effort).map((name) => `output_config.${name}`));
    const constraints = { ...choice, ...schemaFormat(format ?? read.output_format, 'output_config.format') };
    const unread = unreadIn(all, known);
    const stop = read.stop_sequences ?? undefined;
    return {
      model: read.model,
      messages: [
        ...(system === '' ? [] : [{ role: 'system', content: system } as const]),
        ...read.messages.flatMap(({ role, content }, i) => messagesOf(role, content, `messages.${i}.content`)),
      ],
      tools,
      ...present({ maxTokens: read.max_tokens ?? undefined, stop }),
      constraints,
      isStreamed: read.stream === true,
      fields: { ...passedOn(all, ['temperature', 'top_p']), ...present({ stop }), ...constraintFields(constraints) },
      refusal: unread.refusal,
      ignored: [...unread.ignored, ...ignored, ...(hasErrors(read.messages) ? ['tool_result.is_error'] : [])],
      asked: { thinks: isThinking(all['thinking']), stop },
    };
  },
  whole: (answer, call) => ({
    ...messageOf(answer),
    content: blocksOf(answer, call),
    ...stopOf(answer, call),
    usage: usageOf(answer),
  }),
  events(answer, call) {
    const begun = {
      ...messageOf(answer),
      content: [],
      stop_reason: null,
      stop_sequence: null,
      usage: { ...usageOf(answer), output_tokens: 1 },
    };
    const delta = stopOf(answer, call);
    return [
      named('message_start', { message: begun }),
      ...blocksOf(answer, call).flatMap(eventsOfBlock),
      named('message_delta', { delta, usage: usageOf(answer) }),
      named('message_stop', {}),
    ];
  },
  error: ({ status, message }) => ({ type: 'error', error: { type: errorTypes[status] ?? 'api_error', message } }),
};

const errorTypes: Readonly<Record<number, string>> = {
  400: 'invalid_request_error',
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  405: 'invalid_request_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  503: 'overloaded_error',
};

type Content = string | readonly (Fields & { readonly type: string })[];

type Message = { readonly role: string; readonly content: Content };

/** A beginning of the answer would have to be continued within a message, which chat templates do not do. */
function requireQuestion(messages: readonly Message[]): void {
  if (messages.at(-1)?.role !== 'assistant') return;
  refuse('"messages": expected a last message of the user, got one of the assistant: an answer that is begun is not supported.', 'messages'); // prettier-ignore
}

/** Templates have no place for it; programs say in the text what failed. */
function hasErrors(messages: readonly Message[]): boolean {
  return messages.some(({ content }) => typeof content !== 'string' && content.some((one) => one['is_error'] === true));
}

function isThinking(thinking: unknown): boolean {
  const { type } = (thinking ?? {}) as Fields;
  return type === 'enabled' || type === 'adaptive';
}

/** Tools of the vendor's own servers have a type, and no schema. */
function toolsIn(tool: Fields & { readonly name: string }, ignored: string[]): ToolSchema[] {
  const { name, description, input_schema: parameters, type } = tool;
  if (typeof parameters !== 'object' || parameters === null) {
    ignored.push(`tools of type ${typeof type === 'string' ? type : name}`);
    return [];
  }
  return [
    {
      type: 'function',
      function: {
        name,
        description: typeof description === 'string' ? description : '',
        parameters: parameters as Fields,
      },
    },
  ];
}

/** One message of theirs: the answers of tools that it begins with are messages of their own here. */
function messagesOf(role: 'user' | 'assistant' | 'system', content: Content, param: string): ChatMessage[] {
  if (typeof content === 'string') return [{ role, content }];
  if (role === 'assistant') return [assistantMessage(content, param)];
  const messages: ChatMessage[] = [];
  let texts: (Fields & { readonly type: string })[] = [];
  const flush = (): void => {
    if (texts.length > 0) messages.push({ role, content: textOf(texts, param) });
    texts = [];
  };
  for (const one of content) {
    if (one.type !== 'tool_result') texts.push(one);
    else {
      flush();
      const answer = (one['content'] ?? '') as Content;
      const { tool_use_id: id } = one;
      if (typeof id !== 'string') refuse(`"${param}": expected a tool_result with its tool_use_id.`, param);
      messages.push({ role: 'tool', content: textOf(answer, param), tool_call_id: id });
    }
  }
  flush();
  return messages;
}

function assistantMessage(content: Exclude<Content, string>, param: string): ChatMessage {
  const calls = content.filter(({ type }) => type === 'tool_use');
  const texts = content.filter(({ type }) => !['tool_use', 'thinking', 'redacted_thinking'].includes(type));
  const text = textOf(texts, param);
  if (calls.length === 0) return { role: 'assistant', content: text };
  return {
    role: 'assistant',
    content: text,
    tool_calls: calls.map(({ id, name, input }) => ({
      id: String(id),
      type: 'function',
      function: { name: String(name), arguments: stringifyExact(input ?? {}) },
    })),
  };
}

function textOf(content: Content, param: string): string {
  if (typeof content === 'string') return content;
  return content
    .map((part) => {
      if (part.type === 'text' && typeof part['text'] === 'string') return part['text'];
      return refuse(`"${param}": expected blocks of text, got one of type "${part.type}".`, param);
    })
    .join('\n\n');
}

function messageOf({ id, model }: ModelAnswer): Record<string, unknown> {
  return { id: `msg_${id}`, type: 'message', role: 'assistant', model };
}

function blocksOf({ content, reasoning, calls }: ModelAnswer, { asked }: ModelCall): Fields[] {
  const thinks = asked['thinks'] === true && reasoning !== '';
  return [
    ...(thinks ? [{ type: 'thinking', thinking: reasoning, signature: '' }] : []),
    ...(content === '' ? [] : [{ type: 'text', text: content }]),
    ...calls.map(({ id, function: { name, arguments: given } }) => ({
      type: 'tool_use',
      id,
      name,
      input: argumentsObject(given),
    })),
  ];
}

/** The text that ended the turn is in its tokens alone. */
function stopOf({ finishReason, calls, tokens }: ModelAnswer, { asked }: ModelCall): Fields {
  const ended = (stop_reason: string, stop_sequence: string | null = null): Fields => ({ stop_reason, stop_sequence });
  if (finishReason === 'length') return ended('max_tokens');
  const { stop = [] } = asked as { readonly stop?: readonly string[] };
  const said = stop.length === 0 || tokens === null ? '' : tokens().map(({ text }) => text).join(''); // prettier-ignore
  const found = stop.find((text) => said.includes(text));
  if (found !== undefined) return ended('stop_sequence', found);
  return ended(calls.length > 0 ? 'tool_use' : 'end_turn');
}

function usageOf({ usage: { promptTokens, completionTokens } }: ModelAnswer): Record<string, number> {
  return {
    input_tokens: promptTokens,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: 0,
    output_tokens: completionTokens,
  };
}

/** The events of one block, in the order of Anthropic's API. */
function eventsOfBlock(whole: Fields, index: number): StreamEvent[] {
  const events = (begun: object, ...deltas: object[]): StreamEvent[] => [
    named('content_block_start', { index, content_block: { ...whole, ...begun } }),
    ...deltas.map((delta) => named('content_block_delta', { index, delta })),
    named('content_block_stop', { index }),
  ];
  switch (whole['type']) {
    case 'text':
      return events({ text: '' }, { type: 'text_delta', text: whole['text'] });
    case 'thinking':
      return events(
        { thinking: '' },
        { type: 'thinking_delta', thinking: whole['thinking'] },
        { type: 'signature_delta', signature: '' },
      );
    default:
      return events({ input: {} }, { type: 'input_json_delta', partial_json: stringifyExact(whole['input']) });
  }
}

function named(event: string, data: object): StreamEvent {
  return { event, data: { type: event, ...data } };
}
