import { present } from '../../../core/present.ts';
import { RatchetError } from '../../../core/errors.ts';
import { readMessage } from '../../../core/rl/rollout/message-parts.ts';
import { stringifyExact } from '../../../core/exact-json.ts';
import type { ChatMessage, MessageToolCall, ToolSchema, Turn } from '../../../core/rl/rollout/rollout.ts';
import type { SampledTurn, WireMessage } from './protocol.ts';

/** A turn in the form that Python received. */
interface Told {
  readonly text: string;
  /** The model accepts messages in Python's form. */
  readonly isByMessages: boolean;
  readonly content: string;
  readonly callIds: readonly string[];
}

/**
 * One rollout's conversation on both sides of the pipe. Python receives the model's output in OpenAI's format, content
 * and calls apart, and sends it back with the next messages. The model sees its own text, so that the next prompt
 * continues the one before exactly. Messages that the environment changed stay changed.
 */
export class BridgedConversation {
  readonly turns: Turn[] = [];
  readonly #prompt: readonly ChatMessage[];
  readonly #told: Told[] = [];

  constructor(prompt: readonly ChatMessage[]) {
    this.#prompt = prompt;
  }

  /** The messages for the model's next turn; `heard` = those since its last one. */
  read(sent: readonly WireMessage[]): { readonly messages: ChatMessage[]; readonly heard: ChatMessage[] } {
    const received = sent.map(chatMessage);
    const given = commonLength(received, this.#prompt);
    let next = 0;
    let lastSaid = -1;
    const messages = received.map((message, i) => {
      if (message.role !== 'assistant' || i < given) return message;
      const at = this.#told.findIndex((told, k) => k >= next && isSaid(message, told));
      if (at < 0) return message;
      [next, lastSaid] = [at + 1, i];
      const { text, isByMessages } = this.#told[at]!;
      return isByMessages ? message : { role: 'assistant' as const, content: text };
    });
    return { messages, heard: messages.slice(lastSaid < 0 ? given : lastSaid + 1) };
  }

  /** Stores a turn and converts it for Python; ids of calls are unique in the rollout. */
  add(turn: Turn, heard: readonly ChatMessage[], tools: readonly ToolSchema[] | undefined): SampledTurn {
    const position = this.turns.length;
    this.turns.push(heard.length === 0 ? turn : { ...turn, heard });
    const { content = turn.text } = turn;
    const toolCalls = tools || turn.said ? (turn.toolCalls ?? []) : [];
    const calls = toolCalls.map((call, i) => ({ id: `call_${position}_${i}`, ...call }));
    const isByMessages = turn.said !== undefined;
    this.#told.push({ text: turn.text, isByMessages, content, callIds: calls.map(({ id }) => id) });
    return {
      id: `turn_${position}`,
      content: content === '' && calls.length > 0 ? null : content,
      ...present({ reasoning_content: turn.said?.reasoning ?? turn.reasoning }),
      tool_calls: calls,
      finish_reason: turn.finishReason === 'length' ? 'length' : calls.length > 0 ? 'tool_calls' : 'stop',
      usage: usageOf(turn),
      tokens: null,
    };
  }
}

function usageOf({ said, promptTokenIds, tokenIds }: Turn): SampledTurn['usage'] {
  if (said === undefined) return { prompt_tokens: promptTokenIds.length, completion_tokens: tokenIds.length };
  return { prompt_tokens: said.usage?.promptTokens ?? 0, completion_tokens: said.usage?.completionTokens ?? 0 };
}

function isSaid({ content, tool_calls: calls = [] }: ChatMessage, told: Told): boolean {
  return (
    content === told.content &&
    calls.length === told.callIds.length &&
    calls.every(({ id }, i) => id === told.callIds[i])
  );
}

function commonLength(a: readonly ChatMessage[], b: readonly ChatMessage[]): number {
  const differs = a.findIndex((message, i) => {
    const other = b[i];
    return other === undefined || message.role !== other.role || message.content !== other.content;
  });
  return differs < 0 ? a.length : differs;
}

/** Converts a message of OpenAI's API to ours: `null` is no text, and parts beside text stay attached. */
export function chatMessage(message: WireMessage): ChatMessage {
  const { tool_calls: calls, tool_call_id: answers, name } = message;
  const role = roleOf(message.role);
  return {
    ...readMessage({ role, content: message.content ?? null }),
    ...present({
      tool_calls: calls?.length ? calls.map(toolCall) : undefined,
      tool_call_id: answers ?? undefined,
      name: name ?? undefined,
    }),
  };
}

function roleOf(role: string): ChatMessage['role'] {
  if (role === 'system' || role === 'user' || role === 'assistant' || role === 'tool') return role;
  if (role === 'developer') return 'system';
  throw new RatchetError(
    'Unsupported',
    `A message of the environment has the role ${JSON.stringify(role)}; expected system, user, assistant or tool.`,
  );
}

/** verifiers keeps calls flat; OpenAI's API nests them in `function`. */
function toolCall(call: Readonly<Record<string, unknown>>): MessageToolCall {
  const called = (call['function'] ?? call) as Readonly<Record<string, unknown>>;
  const { arguments: given } = called;
  const written = typeof given === 'string' ? given : stringifyExact(given ?? {});
  return {
    id: stringOf(call['id']),
    type: 'function',
    function: { name: stringOf(called['name']), arguments: written },
  };
}

function stringOf(value: unknown): string {
  return typeof value === 'string' ? value : '';
}
