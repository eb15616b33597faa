import type { ToolCall, ToolSchema } from '../../core/rl/rollout/rollout.ts';
import {
  harmonyParsers,
  harmonyTokens,
  type ToolFormat,
  thoughtReaders,
  thoughtTokens,
  toolFormats,
  toolParserOf,
} from './families.ts';
import { readHarmony } from './harmony.ts';
import { overlap } from '../server/generation/stop-strings.ts';
import { thinksIfOpened } from './thoughts.ts';

/**
 * The format of a model's calls and thoughts: vLLM's names of its parsers. null = not configured, so that thoughts are
 * read by their tags.
 */
export interface SpeechParsers {
  readonly tools: string | null;
  readonly reasoning: string | null;
}

/** Hermes' calls, as most templates ask for them. */
export const defaultParsers: SpeechParsers = { tools: 'hermes', reasoning: null };

/** A turn's output in the form of OpenAI's API. */
export interface Speech {
  readonly reasoning: string;
  readonly content: string;
  readonly toolCalls: readonly ToolCall[];
}

export interface SpeechPlace {
  /** Missing = the model has no tools, so nothing that it says is a call. */
  readonly tools?: readonly ToolSchema[] | undefined;
  /** Missing = Hermes' format of calls. */
  readonly parsers?: SpeechParsers | undefined;
  /** The variables of the chat template: some say whether the model thinks. */
  readonly templateArguments?: Readonly<Record<string, unknown>> | undefined;
  /** The prompt ends in an open thought. */
  readonly isThoughtOpen?: boolean | undefined;
}

/** The names that `tool_call_parser` and `reasoning_parser` may have. */
export const toolParserNames: readonly string[] = [...Object.keys(toolFormats), harmonyParsers.tools].sort();
export const reasoningParserNames: readonly string[] = [
  ...Object.keys(thoughtReaders),
  harmonyParsers.reasoning,
].sort();

/** The parsers of a model: chosen ones that are known here, otherwise those of its chat template. */
export function parsersOf(template: string, { tools, reasoning }: Partial<SpeechParsers> = {}): SpeechParsers {
  const isRead = (name: string | null | undefined, names: readonly string[]): name is string =>
    name != null && names.includes(name);
  return {
    tools: isRead(tools, toolParserNames) ? tools : (toolParserOf(template) ?? defaultParsers.tools),
    reasoning: isRead(reasoning, reasoningParserNames) ? reasoning : null,
  };
}

/** Whether a prompt ends inside of a thought that its template opened. */
export function isThoughtOpen(prompt: string): boolean {
  return /<think>\s*$/.test(prompt);
}

/** Special tokens that must stay in the text for it to be read. */
export function tokensRead({ tools, reasoning }: SpeechParsers): readonly string[] {
  if (tools === harmonyParsers.tools || reasoning === harmonyParsers.reasoning) return harmonyTokens;
  return [...(formatOf(tools)?.seen ?? []), ...thoughtTokens];
}

/** Reads a whole turn: thoughts, content, and calls in order. */
export function readSpeech(text: string, place: SpeechPlace = {}): Speech {
  const { parsers = defaultParsers, tools, templateArguments = {} } = place;
  if (parsers.tools === harmonyParsers.tools || parsers.reasoning === harmonyParsers.reasoning) {
    return text.includes('<|message|>')
      ? withoutCalls(readHarmony(text), tools)
      : { reasoning: '', content: text, toolCalls: [] };
  }
  const format = formatOf(parsers.tools);
  const chosen = parsers.reasoning === null ? undefined : thoughtReaders[parsers.reasoning];
  const callMarkers = tools === undefined ? [] : (format?.markers ?? []).filter((marker) => marker.length > 1);
  const thought = chosen
    ? chosen(text, templateArguments)
    : parsers.tools === 'gemma4' || parsers.tools === 'mistral'
      ? thoughtReaders[parsers.tools]!(text, templateArguments)
      : thinksIfOpened(text, callMarkers, place.isThoughtOpen ?? false);
  const { reasoning, rest } = thought;
  if (tools === undefined || format === null) return { reasoning, content: rest, toolCalls: [] };
  return { reasoning, ...format.read(rest, tools) };
}

function formatOf(name: string | null): ToolFormat | null {
  return name !== null && Object.hasOwn(toolFormats, name) ? toolFormats[name]! : null;
}

function withoutCalls(speech: Speech, tools: SpeechPlace['tools']): Speech {
  return tools === undefined ? { ...speech, toolCalls: [] } : speech;
}

/** The calls in a whole text of Hermes' form, in order. */
export function readToolCalls(text: string): ToolCall[] {
  return [...readSpeech(text, { tools: [] }).toolCalls];
}

/** Reads a turn that arrives in pieces. Text that may still become a thought or a call is held back until the end. */
export class SpeechReader {
  readonly #place: SpeechPlace;
  /** Text that may begin a thought or a call; null = nothing is streamed before the end. */
  #markers: readonly string[] | null;
  #text = '';
  #told = 0;

  constructor(place: SpeechPlace) {
    this.#place = place;
    const { tools, reasoning } = place.parsers ?? defaultParsers;
    const isHeld = place.isThoughtOpen === true || reasoning !== null || tools === harmonyParsers.tools;
    const markers = place.tools ? (formatOf(tools)?.markers ?? []) : [];
    this.#markers = isHeld ? null : [...markers, ...thoughtTokens];
  }

  /** Returns content that no later text can change. */
  push(piece: string): string {
    this.#text += piece;
    if (this.#markers === null || /^\s/.test(this.#text)) return '';
    const rest = this.#text.slice(this.#told);
    const ends = this.#markers.map((marker) => {
      const at = rest.indexOf(marker);
      return at >= 0 ? at : rest.length - overlap(rest, marker);
    });
    const told = rest.slice(0, Math.min(...ends)).trimEnd();
    this.#told += told.length;
    if (this.#markers.some((marker) => rest.includes(marker))) this.#markers = null;
    return told;
  }

  /** Returns the rest at the end of the text. */
  finish(): Speech {
    const speech = readSpeech(this.#text, this.#place);
    const told = this.#text.slice(0, this.#told);
    return {
      ...speech,
      content: speech.content.startsWith(told) ? speech.content.slice(told.length) : speech.content,
    };
  }
}
