import { z } from 'zod';
import type { ChatMessage, MessageToolCall, ToolSchema } from '../../../../core/rl/rollout/rollout.ts';
import { present } from '../../../../core/present.ts';
import { errorBody, HttpError } from '../../../../engine/server/http-error.ts';
import type { ApiForm, CallMemory, ModelAnswer, ModelCall, StreamEvent } from './model-call.ts';
import { tokenLogprobs } from './chat-form.ts';
import { chosenTools, constraintFields, schemaFormat } from './constraints.ts';
import { argumentsObject, type Fields, namesIn, passedOn, readBody, refuse, unreadIn } from './request-fields.ts';

/** OpenAI's responses: POST /v1/responses. Items in and out; what is named in place of sent is looked up. */

const item = z.looseObject({ type: z.string().nullish() });
const Request = z.looseObject({
  model: z.string(),
  input: z.union([z.string(), z.array(item)], { error: 'expected a text or a list of items' }),
  instructions: z.string().nullish(),
  tools: z.array(z.looseObject({ type: z.string() })).nullish(),
  tool_choice: z.unknown().optional(),
  max_output_tokens: z.int().min(1).nullish(),
  stream: z.boolean().nullish(),
  previous_response_id: z.string().nullish(),
  text: z.looseObject({ format: z.unknown().optional() }).nullish(),
  reasoning: z.looseObject({ effort: z.string().nullish() }).nullish(),
});

export const responsesForm: ApiForm = {
  read(body, memory) {
    const { read, all } = readBody(Request, body);
    const { previous_response_id: previous, instructions } = read;
    const before = previous == null ? [] : remembered(previous, memory);
    const isInstructed = instructions != null && instructions !== '';
    const items = typeof read.input === 'string' ? [{ role: 'user', content: read.input }] : read.input;
    if (items.length === 0 && before.length === 0) refuse('"input": expected at least one item, got none.', 'input');
    const custom = new Set<string>();
    const ignored: string[] = [];
    const known = (read.tools ?? []).flatMap((tool) => toolsIn(tool, custom, ignored));
    const { tools, constraints: choice } = chosenTools(known, read.tool_choice);
    const { format, ...style } = read.text ?? {};
    const constraints = { ...choice, ...schemaFormat(format, 'text.format') };
    const { effort } = read.reasoning ?? {};
    ignored.push(...Object.keys(style).map((name) => `text.${name}`), ...(effort == null ? [] : ['reasoning.effort']));
    const unread = unreadIn(all, namesIn(Request));
    const includes = Array.isArray(all['include']) ? (all['include'] as unknown[]) : [];
    return {
      model: read.model,
      messages: [
        ...(isInstructed ? [{ role: 'system', content: instructions } as const] : []),
        ...before,
        ...messagesOf(items),
      ],
      ...(isInstructed ? { isInstructed } : {}),
      tools,
      ...present({ maxTokens: read.max_output_tokens ?? undefined }),
      constraints,
      isStreamed: read.stream === true,
      fields: {
        ...passedOn(all, ['temperature', 'top_p']),
        ...(effort == null ? {} : { reasoning_effort: effort }),
        ...constraintFields(constraints),
      },
      refusal: unread.refusal,
      ignored: [...unread.ignored, ...ignored],
      asked: { custom, all, logprobs: includes.includes('message.output_text.logprobs') },
    };
  },
  whole: (answer, call) => ({ ...responseOf(answer, call), ...endOf(answer), output: itemsOf(answer, call) }),
  events(answer, call) {
    const begun = { ...responseOf(answer, call), status: 'in_progress', output: [], usage: null };
    const whole = responsesForm.whole(answer, call);
    const last = answer.finishReason === 'length' ? 'response.incomplete' : 'response.completed';
    const events: StreamEvent[] = [
      named('response.created', { response: begun }),
      named('response.in_progress', { response: begun }),
      ...itemsOf(answer, call).flatMap(eventsOfItem),
      named(last, { response: whole }),
    ];
    return events.map(({ event, data }, i) => ({ ...present({ event }), data: { ...data, sequence_number: i } }));
  },
  error: errorBody,
};

type Item = Readonly<Record<string, unknown>> & { readonly type: string; readonly id: string };

/** Instructions are those of each call; they are not carried on. */
function remembered(previous: string, memory: CallMemory): readonly ChatMessage[] {
  const found = memory.conversation(previous.replace(/^resp_/, ''));
  if (found !== undefined) return found.isInstructed ? found.messages.slice(1) : found.messages;
  const message = `There is no response "${previous.slice(0, 100)}" in this rollout. Send the items in place of previous_response_id.`;
  throw new HttpError(404, message, { param: 'previous_response_id' });
}

/** A tool whose argument is a free text becomes a function of one text, since models' templates know only those. */
function toolsIn(tool: Fields & { readonly type: string }, custom: Set<string>, ignored: string[]): ToolSchema[] {
  const { type, name, description, parameters, strict } = tool;
  if (type === 'namespace' && Array.isArray(tool['tools']))
    return (tool['tools'] as (Fields & { readonly type: string })[]).flatMap((one) => toolsIn(one, custom, ignored));
  if ((type !== 'function' && type !== 'custom') || typeof name !== 'string') {
    ignored.push(`tools of type ${type}`);
    return [];
  }
  const text = { type: 'object', properties: { input: { type: 'string' } }, required: ['input'] };
  if (type === 'custom') custom.add(name);
  return [
    {
      type: 'function',
      function: {
        name,
        description: typeof description === 'string' ? description : '',
        parameters: type === 'custom' ? text : ((parameters as Fields | null) ?? { type: 'object', properties: {} }),
        ...(typeof strict === 'boolean' ? { strict } : {}),
      },
    },
  ];
}

/** Items as messages. A model's message and the calls behind it are one. */
function messagesOf(items: readonly Fields[]): ChatMessage[] {
  const messages: ChatMessage[] = [];
  const call = (name: unknown, id: unknown, given: string): void => {
    const made: MessageToolCall = {
      id: String(id),
      type: 'function',
      function: { name: String(name), arguments: given },
    };
    const open = messages.at(-1);
    if (open?.role !== 'assistant') messages.push({ role: 'assistant', content: '', tool_calls: [made] });
    else messages[messages.length - 1] = { ...open, tool_calls: [...(open.tool_calls ?? []), made] };
  };
  for (const [i, one] of items.entries()) {
    const { type = 'message', call_id: id } = one;
    switch (type ?? 'message') {
      case 'message':
        messages.push({ role: roleOf(one['role'], i), content: textOf(one['content'], `input.${i}.content`) });
        break;
      case 'function_call':
        call(one['name'], id, argumentsOf(one['arguments']));
        break;
      case 'custom_tool_call':
        call(one['name'], id, JSON.stringify({ input: one['input'] ?? '' }));
        break;
      case 'function_call_output':
      case 'custom_tool_call_output':
        if (typeof id !== 'string') refuse(`"input.${i}.call_id": expected the id of the call.`, `input.${i}.call_id`);
        messages.push({ role: 'tool', content: textOf(one['output'], `input.${i}.output`), tool_call_id: id });
        break;
      case 'reasoning':
        break; // the model's own thoughts are in its turn
      default:
        refuse(
          `"input.${i}.type": expected a message, a call of a function or its output, got "${String(type).slice(0, 100)}".`,
          `input.${i}.type`,
        );
    }
  }
  return messages;
}

function argumentsOf(given: unknown): string {
  return typeof given === 'string' ? given : JSON.stringify(given ?? {});
}

function roleOf(role: unknown, i: number): ChatMessage['role'] {
  if (role === 'developer') return 'system';
  if (role === 'system' || role === 'user' || role === 'assistant') return role;
  return refuse(
    `"input.${i}.role": expected "system", "developer", "user" or "assistant", got ${JSON.stringify(role)?.slice(0, 100)}.`,
    `input.${i}.role`,
  );
}

function textOf(content: unknown, param: string): string {
  if (typeof content === 'string') return content;
  if (!Array.isArray(content)) return content == null ? '' : JSON.stringify(content);
  return content
    .map((part: Fields) => {
      if (typeof part['text'] === 'string') return part['text'];
      if (typeof part['refusal'] === 'string') return part['refusal'];
      return refuse(`"${param}": expected parts with text, got one of type "${String(part['type'])}".`, param);
    })
    .join('');
}

function responseOf({ id, model, createdS }: ModelAnswer, { asked }: ModelCall): Record<string, unknown> {
  const { all } = asked as { readonly all: Fields };
  return {
    id: `resp_${id}`,
    object: 'response',
    created_at: createdS,
    status: 'completed',
    error: null,
    incomplete_details: null,
    instructions: all['instructions'] ?? null,
    max_output_tokens: all['max_output_tokens'] ?? null,
    model,
    parallel_tool_calls: all['parallel_tool_calls'] ?? true,
    previous_response_id: all['previous_response_id'] ?? null,
    reasoning: { effort: null, summary: null },
    store: all['store'] ?? true,
    temperature: all['temperature'] ?? 1,
    text: all['text'] ?? { format: { type: 'text' } },
    tool_choice: all['tool_choice'] ?? 'auto',
    tools: all['tools'] ?? [],
    top_p: all['top_p'] ?? 1,
    truncation: 'disabled',
    metadata: all['metadata'] ?? {},
  };
}

function endOf({ finishReason, usage, reasoning }: ModelAnswer): Record<string, unknown> {
  const { promptTokens, completionTokens } = usage;
  return {
    ...(finishReason === 'length' ? { status: 'incomplete', incomplete_details: { reason: 'max_output_tokens' } } : {}),
    usage: {
      input_tokens: promptTokens,
      input_tokens_details: { cached_tokens: 0 },
      output_tokens: completionTokens,
      output_tokens_details: { reasoning_tokens: reasoning === '' ? 0 : completionTokens },
      total_tokens: promptTokens + completionTokens,
    },
  };
}

function itemsOf({ id, content, reasoning, calls, tokens }: ModelAnswer, { asked }: ModelCall): Item[] {
  const { custom, logprobs } = asked as { readonly custom: ReadonlySet<string>; readonly logprobs: boolean };
  const given = logprobs && tokens !== null ? tokenLogprobs(tokens) : [];
  const text = { type: 'output_text', text: content, annotations: [], logprobs: given };
  const thoughts = { type: 'reasoning_text', text: reasoning };
  const isSilent = content === '' && calls.length > 0;
  return [
    ...(reasoning === '' ? [] : [{ type: 'reasoning', id: `rs_${id}`, summary: [], content: [thoughts] }]),
    ...(isSilent
      ? []
      : [{ type: 'message', id: `msg_${id}`, status: 'completed', role: 'assistant', content: [text] }]),
    ...calls.map(({ id: call_id, function: { name, arguments: given } }) => {
      const common = { id: `fc_${call_id}`, status: 'completed', call_id, name };
      if (!custom.has(name)) return { type: 'function_call', ...common, arguments: given };
      const { input } = argumentsObject(given);
      return { type: 'custom_tool_call', ...common, input: typeof input === 'string' ? input : given };
    }),
  ];
}

/** The events of one item, in the order of OpenAI's API. */
function eventsOfItem(whole: Item, output_index: number): StreamEvent[] {
  const at = { item_id: whole.id, output_index };
  const events = (begun: object, ...within: StreamEvent[]): StreamEvent[] => [
    named('response.output_item.added', { output_index, item: { ...whole, ...begun } }),
    ...within,
    named('response.output_item.done', { output_index, item: whole }),
  ];
  if (whole.type === 'message') {
    const [part] = whole['content'] as { readonly text: string; readonly logprobs: readonly object[] }[];
    const of = { ...at, content_index: 0 };
    const { text, logprobs } = part!;
    return events(
      { status: 'in_progress', content: [] },
      named('response.content_part.added', { ...of, part: { ...part, text: '', logprobs: [] } }),
      ...(text === '' ? [] : [named('response.output_text.delta', { ...of, delta: text, logprobs })]),
      named('response.output_text.done', { ...of, text, logprobs }),
      named('response.content_part.done', { ...of, part }),
    );
  }
  if (whole.type === 'reasoning') {
    const [part] = whole['content'] as { readonly text: string }[];
    const of = { ...at, content_index: 0 };
    return events(
      { content: [] },
      named('response.reasoning_text.delta', { ...of, delta: part!.text }),
      named('response.reasoning_text.done', { ...of, text: part!.text }),
    );
  }
  const field = whole.type === 'function_call' ? 'arguments' : 'input';
  const prefix = field === 'arguments' ? 'response.function_call_arguments' : 'response.custom_tool_call_input';
  return events(
    { status: 'in_progress', [field]: '' },
    named(`${prefix}.delta`, { ...at, delta: whole[field] }),
    named(`${prefix}.done`, { ...at, [field]: whole[field] }),
  );
}

function named(event: string, data: object): StreamEvent {
  return { event, data: { type: event, ...data } };
}
