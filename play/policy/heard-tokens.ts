import type { ChatMessage, HeardSpan } from '../../core/rl/rollout/rollout.ts';
import type { RenderedPrompt } from '../../engine/model/template/conversation-prompts.ts';
import { Detokenizer } from '../../engine/model/tokenizer/detokenizer.ts';
import type { ChatOptions } from '../../engine/model/template/chat-template.ts';
import type { ChatTokenizer } from '../../engine/model/tokenizer/tokenizer.ts';

/** Characters of a private plane, which no template or conversation has. */
const markOf = (i: number): string => `\u{F0000}${i}\u{F0001}`;

/**
 * Token ranges of the last messages' contents in a rendered prompt. A token belongs to the segment of its first
 * character, so role tags and separators belong to none, as in the library that renders prompts for prime-rl (renderers
 * 0.1.12, base.py, `attribute_text_segments`). `from` = index of the first of these messages.
 */
export function heardTokens(
  tokenizer: ChatTokenizer,
  prompt: RenderedPrompt,
  heard: { readonly messages: readonly ChatMessage[]; readonly from: number; readonly roles: ReadonlySet<string> },
  options: ChatOptions,
): HeardSpan[] {
  const { messages, from, roles } = heard;
  const wanted = messages.flatMap(({ role, content }, i) =>
    i >= from && roles.has(role) && content !== '' ? [i] : [],
  );
  if (wanted.length === 0) return [];
  const characters = charactersOf(tokenizer, prompt.text, { messages, wanted }, options);
  const begins = characters && beginningsOf(tokenizer, prompt);
  return wanted.map((i) => {
    const { role } = messages[i]!;
    const span = characters?.get(i);
    if (!begins || !span) return { role, tokens: null };
    const [first, end] = span.map((at) => begins.findIndex((begin) => begin >= at)) as [number, number];
    const before = prompt.tokenIds.length - begins.length;
    const place = (k: number): number => before + (k < 0 ? begins.length : k);
    return { role, tokens: [place(first), place(end)] };
  });
}

/** Character range of each content, by the index of its message; null when the template changes one. */
function charactersOf(
  tokenizer: ChatTokenizer,
  text: string,
  { messages, wanted }: { readonly messages: readonly ChatMessage[]; readonly wanted: readonly number[] },
  options: ChatOptions,
): ReadonlyMap<number, readonly [number, number]> | null {
  const marked = messages.map((message, i) => (wanted.includes(i) ? { ...message, content: markOf(i) } : message));
  let rest = tokenizer.renderChatText(marked, { ...options, addGenerationPrompt: true });
  const places = new Map<number, readonly [number, number]>();
  let at = 0;
  for (const i of wanted) {
    const [before, ...after] = rest.split(markOf(i));
    if (before === undefined || after.length !== 1 || !text.startsWith(before, at)) return null;
    const { content } = messages[i]!;
    const written = [content, content.trim()].find((form) => text.startsWith(form, at + before.length));
    if (written === undefined) return null;
    places.set(i, [at + before.length, at + before.length + written.length]);
    at += before.length + written.length;
    rest = after[0]!;
  }
  return text.slice(at) === rest ? places : null;
}

/**
 * Character at which each token begins, for tokens rendered after the previous turn; null when the tokens decode to
 * another text, as with tokenizers that normalize it.
 */
function beginningsOf(tokenizer: ChatTokenizer, { text, tokenIds, rest }: RenderedPrompt): readonly number[] | null {
  const { characters, tokens } = rest ?? { characters: text.length, tokens: tokenIds.length };
  const own = tokenIds.slice(tokenIds.length - tokens);
  const detokenizer = new Detokenizer(tokenizer, { skipSpecialTokens: false });
  // Decoders may treat the first token of a text differently.
  for (const id of tokenIds.slice(0, tokenIds.length - tokens).slice(-1)) detokenizer.push(id);
  let said = '';
  const begins: number[] = [];
  for (const id of own) {
    begins.push(text.length - characters + said.length);
    said += detokenizer.push(id);
  }
  said += detokenizer.finish();
  return said === text.slice(text.length - characters) ? begins : null;
}
