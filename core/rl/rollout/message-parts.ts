import { RatchetError } from '../../errors.ts';
import { messagePartCharsMax, storedPartCharsMax } from '../../limits.ts';
import { hash32 } from '../../random.ts';
import type { ChatMessage } from './rollout.ts';

/**
 * Messages with pictures and other parts beside text, in OpenAI's format. `content` of a message is always text: a
 * picture appears as `[image image/png, 70 bytes, 1a2b3c4d]`. The parts are attached under a symbol, which copies keep
 * and JSON leaves out. So APIs receive the original parts, and the store has only the text.
 */
const parts = Symbol.for('ratchet.message-parts'); // shared: a process may hold this module twice

/** A part of a message's content; `type` decides the other fields. */
export type ContentPart = Readonly<Record<string, unknown>> & { readonly type: string };

/** A message from an environment, whose content may be parts. */
export type WrittenMessage = Omit<ChatMessage, 'content'> & {
  readonly content: string | null | readonly Readonly<Record<string, unknown>>[];
};

/**
 * Converts content parts to text and keeps the parts beside it. Throws `Unsupported` for content that is too large, or
 * is none.
 */
export function readMessage(message: WrittenMessage | ChatMessage): ChatMessage {
  const { content } = message as WrittenMessage;
  if (typeof content === 'string') return message as ChatMessage;
  if (content === null || content === undefined) return { ...message, content: '' };
  const read = content.map(readPart);
  const text = read.map(partText).join('');
  const isText = read.every(isTextPart);
  return { ...message, content: text, ...(isText ? {} : { [parts]: read }) };
}

/** The parts of a message that is not of text alone. */
export function partsOf(message: ChatMessage): readonly ContentPart[] | undefined {
  return (message as { readonly [parts]?: readonly ContentPart[] })[parts];
}

/** The message for an API: its parts in place of their text. */
export function messageForApi(message: ChatMessage): WrittenMessage {
  const own = partsOf(message);
  if (own === undefined) return message;
  const { [parts]: _, ...rest } = message as ChatMessage & { readonly [parts]?: unknown };
  return { ...rest, content: own };
}

/** The type of the first part that is no text, over all messages; undefined if there is none. */
export function otherPart(messages: readonly (ChatMessage | WrittenMessage)[]): string | undefined {
  for (const message of messages) {
    const own = partsOf(readMessage(message))?.find((part) => !isTextPart(part));
    if (own !== undefined) return own.type;
  }
  return undefined;
}

/** Throws for messages with pictures, since only text can be rendered to tokens. */
export function requireText(messages: readonly ChatMessage[]): void {
  const type = otherPart(messages);
  if (type === undefined) return;
  throw new RatchetError(
    'Unsupported',
    `A message has a part of the type ${JSON.stringify(type)}, and this model is asked by tokens of text. ${askAnApi}`,
  );
}

export const askAnApi =
  'Evaluate the environment with a model that reads them, behind an API: npx ratchet-rl eval run ENV -m MODEL';

/** Text of a part: its own, or `[image …]`, `[input_audio]`. */
export function partText(part: Readonly<Record<string, unknown>>): string {
  if (typeof part['text'] === 'string') return part['text'];
  const url = imageUrl(part);
  return url === undefined ? `[${typeof part['type'] === 'string' ? part['type'] : 'part'}]` : imageText(url);
}

/** Messages of a row for results: a picture above a bound becomes its description. */
export function boundedMessages<T>(messages: T): T {
  if (!Array.isArray(messages)) return messages;
  return messages.map((message: unknown) => {
    const content = isTable(message) ? message['content'] : undefined;
    if (!isTable(message) || !Array.isArray(content)) return message;
    return { ...message, content: content.map((part: unknown) => boundedPart(part)) };
  }) as T;
}

function boundedPart(part: unknown): unknown {
  if (!isTable(part) || isTextPart(part) || charactersOf(part) <= storedPartCharsMax) return part;
  return { type: 'text', text: partText(part) };
}

function readPart(part: Readonly<Record<string, unknown>>): ContentPart {
  if (!isTable(part) || typeof part['type'] !== 'string') {
    throw new RatchetError(
      'Unsupported',
      `A message of the environment has a part without a type; expected { type: "text", text } or { type: "image_url", image_url: { url } }, as OpenAI's API has them.`,
    );
  }
  // Datasets give every part the columns of all parts, with null for absent ones.
  const own = Object.fromEntries(Object.entries(part).filter(([, value]) => value != null)) as ContentPart;
  const characters = charactersOf(own);
  if (characters > messagePartCharsMax) {
    throw new RatchetError(
      'Unsupported',
      `A message of the environment has a part of the type ${JSON.stringify(own.type)} with ${characters} characters; at most ${messagePartCharsMax} are sent. Make it smaller, or name it by an https address.`,
    );
  }
  return own;
}

function isTextPart(part: Readonly<Record<string, unknown>>): boolean {
  return part['type'] === 'text' && typeof part['text'] === 'string';
}

function imageUrl(part: Readonly<Record<string, unknown>>): string | undefined {
  if (part['type'] !== 'image_url' && part['type'] !== 'input_image') return undefined;
  const { image_url: image } = part;
  const url = isTable(image) ? image['url'] : image;
  return typeof url === 'string' ? url : undefined;
}

/** An inline picture becomes its kind, size and digest; an address stays as it is. */
function imageText(url: string): string {
  const [, type] = /^data:([\w.+-]+\/[\w.+-]+)?[^,]{0,200},/.exec(url) ?? [];
  if (!url.startsWith('data:')) return `[image ${url.slice(0, 200)}]`;
  const data = url.slice(url.indexOf(',') + 1);
  const padding = data.endsWith('==') ? 2 : data.endsWith('=') ? 1 : 0;
  const bytes = Math.max(0, Math.floor((data.length * 3) / 4) - padding);
  return `[image ${type === undefined ? '' : `${type}, `}${bytes} bytes, ${hash32(url).toString(16).padStart(8, '0')}]`;
}

/** Length of the longest text within. */
function charactersOf(value: unknown): number {
  if (typeof value === 'string') return value.length;
  if (typeof value !== 'object' || value === null) return 0;
  return Math.max(0, ...Object.values(value).map(charactersOf));
}

function isTable(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
