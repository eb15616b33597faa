import { present } from '../../../core/present.ts';
import { RatchetError } from '../../../core/errors.ts';
import { readMessage } from '../../../core/rl/message-parts.ts';
import { stringifyExact } from '../../../engine/speech/exact-json.ts';
import type { ChatMessage, MessageToolCall, ToolSchema, Turn } from '../../../core/rl/rollout.ts';
import type { SampledTurn, WireMessage } from './protocol.ts';

/** A turn as it was told to Python. */
interface Told {
  readonly text: string;
  /** The model takes messages as Python has them. */
  readonly isByMessages: boolean;
  readonly content: string;
  readonly callIds: readonly string[];
}

/**
 * One rollout's conversation on both sides of the pipe. Python has what the model said as OpenAI's API tells it, content and calls
 * apart, and sends it back with the next messages; the model gets the text that it wrote, so that the next prompt begins as the
 * one before went on. What the environment changed in a message stays changed.
 */
export class BridgedConversation {
  readonly turns: Turn[] = [];
  readonly #prompt: readonly ChatMessage[];
  readonly #told: Told[] = [];

  constructor(prompt: readonly ChatMessage[]) {
    this.#prompt = prompt;
  }

  /** The messages for the model's next turn; `heard` = those that came since its last one. */
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

  /** Keeps a turn, and tells it as Python has it; ids of calls are unique in the rollout. */
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

/** A message of OpenAI's API as ours: `null` is no text, and parts that are no text stay with it. */
export function chatMessage(message: WireMessage): ChatMessage {
  const { tool_calls: calls, tool_call_id: answers, name } = message;
  const role = roleOf(message.role);
  return {
    ...readMessage({ role, content: message.content ?? null }),
    ...(calls == null || calls.length === 0 ? {} : { tool_calls: calls.map(toolCall) }),
    ...present({ tool_call_id: answers, name }),
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

/** verifiers keeps calls flat, OpenAI's API has them in `function`. */
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
