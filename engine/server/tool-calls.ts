import { z } from 'zod';
import type { ToolCall } from '../../core/rl/rollout.ts';
import { overlap } from './stop-strings.ts';

/** What a completion says, in order. */
export type CompletionPart = { readonly content: string } | { readonly toolCall: ToolCall };

const opening = '<tool_call>';
const closing = '</tool_call>';
const Call = z.object({ name: z.string().min(1), arguments: z.record(z.string(), z.unknown()) });

/**
 * Hermes' tool calls, which Qwen's templates ask for as well: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`,
 * any number of them, out of a text that comes piece by piece. A call is told when it is whole; what is not the JSON of a
 * call stays text as it was written. Blanks beside a call are the template's and are left out.
 */
export class ToolCallReader {
  /** Text not yet told: blanks that a call may follow, and what may become an opening. */
  #held = '';
  /** The open call in pieces, its opening the first of them; null outside of calls. */
  #call: string[] | null = null;
  #isAfterCall = false;

  push(piece: string): CompletionPart[] {
    const said: CompletionPart[] = [];
    let rest: string | null = piece;
    while (rest !== null) rest = this.#call ? this.#readCall(this.#call, rest, said) : this.#readText(rest, said);
    return said;
  }

  /** The text has ended. An open call counts if its JSON is whole, as when the stop token took the closing's place. */
  finish(): CompletionPart[] {
    const text = this.#call?.join('') ?? '';
    const blanks = this.#held;
    this.#held = '';
    this.#call = null;
    const toolCall = text === '' ? null : parseCall(text.slice(opening.length));
    if (toolCall) return [{ toolCall }];
    return this.#isAfterCall && text === '' && blanks.trim() === '' ? [] : contentOf(blanks + text);
  }

  /** What follows the opening of a call; null when the piece is used up. */
  #readText(piece: string, said: CompletionPart[]): string | null {
    const text = this.#held + piece;
    const start = text.indexOf(opening);
    const end = start >= 0 ? start : text.length - overlap(text, opening);
    const told = text.slice(0, end).trimEnd();
    if (told !== '') this.#isAfterCall = false;
    said.push(...contentOf(told));
    this.#held = text.slice(told.length, start >= 0 ? start : text.length);
    if (start < 0) return null;
    this.#call = [opening];
    return text.slice(start + opening.length);
  }

  /** What follows the closing of the call; null when the piece is used up. */
  #readCall(call: string[], piece: string, said: CompletionPart[]): string | null {
    const tail = call.length > 1 ? call.pop()! : '';
    const text = tail + piece;
    const end = text.indexOf(closing);
    if (end < 0) {
      const keptLength = overlap(text, closing);
      call.push(text.slice(0, text.length - keptLength), text.slice(text.length - keptLength));
      return null;
    }
    call.push(text.slice(0, end));
    const whole = call.join('');
    const toolCall = parseCall(whole.slice(opening.length));
    said.push(...(toolCall ? [{ toolCall }] : contentOf(this.#held + whole + closing)));
    this.#held = '';
    this.#call = null;
    this.#isAfterCall = toolCall !== null;
    return text.slice(end + closing.length);
  }
}

/** A whole text as OpenAI's API tells it: its calls in order, and what was said beside them. */
export function readToolTurn(text: string): { readonly content: string; readonly toolCalls: ToolCall[] } {
  const reader = new ToolCallReader();
  const said = [...reader.push(text), ...reader.finish()];
  return {
    content: said.map((part) => ('content' in part ? part.content : '')).join(''),
    toolCalls: said.flatMap((part) => ('toolCall' in part ? [part.toolCall] : [])),
  };
}

/** The calls in a whole text, in order. */
export function readToolCalls(text: string): ToolCall[] {
  return readToolTurn(text).toolCalls;
}

function contentOf(text: string): CompletionPart[] {
  return text === '' ? [] : [{ content: text }];
}

function parseCall(text: string): ToolCall | null {
  try {
    const call = Call.safeParse(JSON.parse(text));
    return call.success ? { name: call.data.name, arguments: JSON.stringify(call.data.arguments) } : null;
  } catch {
    return null; // no JSON, or too deep to be written again: what the model wrote stays text
  }
}
