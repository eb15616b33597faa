import { Tokenizer } from '@huggingface/tokenizers';
import { z } from 'zod';
import { RatchetError } from '../../../core/errors.ts';
import { tokenizerMs } from '../../limits.ts';
import { stringifyExact } from '../../../core/exact-json.ts';
import {
  additionalSpecialTokens,
  type ChatOptions,
  ChatTemplates,
  type TemplateMessage,
} from '../template/chat-template.ts';
import { hasUnknownExpression } from './pre-tokenizing.ts';
import { TookTooLong, withinTime } from '../within-time.ts';

/** The files a tokenizer is made of, as text. */
interface TokenizerFiles {
  /** tokenizer.json */
  readonly tokenizer: string;
  /** tokenizer_config.json */
  readonly config: string;
  /** chat_template.jinja, if the template is a file of its own; it wins over the one in the config. */
  readonly chatTemplate?: string;
  /** additional_chat_templates/tool_use.jinja: the template for conversations with tools, if there is one. */
  readonly toolTemplate?: string;
}

/** Prompts kept rendered: those of the groups in flight. */
const renderedMax = 512;

/** Text to token ids and back, and conversations to prompts, as the model's own files say. */
export class ChatTokenizer {
  readonly #tokenizer: Tokenizer;
  readonly #templates: ChatTemplates;
  readonly #specialTokenIds: ReadonlySet<number>;
  /** The rollouts of a group have the same prompt, and rendering is slower than a lookup. */
  readonly #rendered = new Map<string, { text: string; tokenIds: number[] }>();
  /** Texts of added tokens, special or not: a text is cut before and after each of them, whatever is around it. */
  readonly #addedTokens: readonly string[];
  readonly #where: string;
  /** Expressions of its own may take years over a text: those that cut it before it is encoded, and those that put it together. */
  readonly #isWatched: { readonly encoding: boolean; readonly decoding: boolean };

  /** `time`: the result of strftime_now in the chat template, in the form of `minuteOf`; null = the clock's. */
  constructor(files: TokenizerFiles, where: string, time: string | null = null) {
    const tokenizer = parseObject(files.tokenizer, `${where}/tokenizer.json`);
    const rawConfig = parseObject(files.config, `${where}/tokenizer_config.json`);
    this.#where = where;
    this.#isWatched = {
      encoding: hasUnknownExpression([tokenizer['normalizer'], tokenizer['pre_tokenizer']]),
      decoding: hasUnknownExpression([tokenizer['decoder']]),
    };
    try {
      this.#tokenizer = new Tokenizer(tokenizer, rawConfig);
      this.#templates = new ChatTemplates(rawConfig, files, time);
    } catch (cause) {
      throw badTokenizer(where, whyNoTokenizer(cause), cause);
    }
    this.#specialTokenIds = specialTokenIds(this.#tokenizer, rawConfig);
    this.#addedTokens = [...this.#tokenizer.get_added_tokens_decoder().values()].flatMap(({ content, single_word }) =>
      single_word || content === '' ? [] : [content],
    );
  }

  /** Special tokens in the text are recognized. Those that begin or end every text are added only on request. */
  encode(text: string, options: { addSpecialTokens?: boolean } = {}): number[] {
    const encode = (): number[] =>
      this.#tokenizer.encode(text, { add_special_tokens: options.addSpecialTokens ?? false }).ids;
    return this.#isWatched.encoding ? this.#inTime(encode, `${text.length} characters`) : encode();
  }

  /**
   * Tokenizes a text as a continuation of another: tokenizers that mark the beginnings of words (SentencePiece) add a
   * space before a separate text. Null if no token ends between the two.
   */
  encodeAfter(before: string, text: string): number[] | null {
    if (text === '' || this.beginsWithAddedToken(text)) return this.encode(text);
    // What stands before an added token changes nothing behind it, and a conversation may be long.
    const last = this.#addedTokens.findLast((token) => before.endsWith(token)) ?? before;
    const [known, both] = [this.encode(last), this.encode(last + text)];
    return known.every((id, i) => id === both[i]) ? both.slice(known.length) : null;
  }

  /**
   * Special tokens are left out by default. Spaces before punctuation stay, whatever clean_up_tokenization_spaces of
   * tokenizer_config.json says: transformers ignores it for tokenizers of these families, and vLLM has no such option.
   */
  decode(tokenIds: readonly number[], options: { skipSpecialTokens?: boolean } = {}): string {
    if (tokenIds.length === 0) return '';
    const decode = (): string =>
      this.#tokenizer.decode([...tokenIds], {
        skip_special_tokens: options.skipSpecialTokens ?? true,
        clean_up_tokenization_spaces: false,
      });
    return this.#isWatched.decoding ? this.#inTime(decode, `${tokenIds.length} tokens`) : decode();
  }

  #inTime<T>(work: () => T, over: string): T {
    try {
      return withinTime(tokenizerMs, work);
    } catch (cause) {
      if (!(cause instanceof TookTooLong)) throw cause;
      throw new RatchetError(
        'ModelUnsupported',
        `${this.#where}/tokenizer.json: the tokenizer took ${cause.message} over ${over}. Its regular expression is none of those known to be quick; the tokenizer as the makers of this model published it has another.`,
        { cause },
      );
    }
  }

  /** Special tokens are left out but for those named: calls and thoughts are read by them. */
  decodeKeeping(tokenIds: readonly number[], kept: readonly string[]): string {
    const ids = tokenIds.filter((id) => !this.isSpecial(id) || kept.includes(this.tokenText(id)));
    return this.decode(ids, { skipSpecialTokens: false });
  }

  templateText(hasTools: boolean): string {
    return this.#templates.textFor(hasTools);
  }

  /** Whether `decode` leaves it out. */
  isSpecial(tokenId: number): boolean {
    return this.#specialTokenIds.has(tokenId);
  }

  /** One token's own text, special tokens included, as a log of token logprobs shows it. */
  tokenText(tokenId: number): string {
    const text = this.decode([tokenId], { skipSpecialTokens: false });
    return text === '' ? (this.#tokenizer.id_to_token(tokenId) ?? '') : text;
  }

  /** Whether a text begins with a token that always ends the token before it. */
  beginsWithAddedToken(text: string): boolean {
    return this.#addedTokens.some((token) => text.startsWith(token));
  }

  get canRenderChat(): boolean {
    return this.#templates.isThere;
  }

  /** The prompt after which the assistant's next message is sampled. */
  renderChat(messages: readonly TemplateMessage[], options: ChatOptions = {}): number[] {
    return this.renderPrompt(messages, options).tokenIds;
  }

  renderPrompt(messages: readonly TemplateMessage[], options: ChatOptions = {}): { text: string; tokenIds: number[] } {
    const key = stringifyExact([messages, options.tools ?? null, options.templateArguments ?? null]);
    const known = this.#rendered.get(key);
    if (known) return known;
    const text = this.renderChatText(messages, { ...options, addGenerationPrompt: true });
    const prompt = { text, tokenIds: this.encode(text) };
    this.#rendered.set(key, prompt);
    if (this.#rendered.size > renderedMax) this.#rendered.delete(this.#rendered.keys().next().value!);
    return prompt;
  }

  /** The conversation as the model's chat template writes it, as transformers' apply_chat_template(tokenize=False). */
  renderChatText(
    messages: readonly TemplateMessage[],
    options: ChatOptions & { readonly addGenerationPrompt: boolean },
  ): string {
    return this.#templates.render(messages, options);
  }
}

function specialTokenIds(tokenizer: Tokenizer, config: Record<string, unknown>): Set<number> {
  const added = [...tokenizer.get_added_tokens_decoder().values()];
  const named = additionalSpecialTokens(config).map((token) => tokenizer.token_to_id(token));
  return new Set([...added.flatMap((token) => (token.special ? [token.id] : [])), ...named.filter((id) => id != null)]);
}

function parseObject(text: string, where: string): Record<string, unknown> {
  let raw: unknown;
  try {
    raw = JSON.parse(text);
  } catch (cause) {
    throw badTokenizer(where, 'text that is not JSON', cause);
  }
  const parsed = z.record(z.string(), z.unknown()).safeParse(raw);
  if (!parsed.success) throw badTokenizer(where, 'no JSON object');
  return parsed.data;
}

/** The library's own errors are unclear for a missing key or a wrong type. */
function whyNoTokenizer(cause: unknown): string {
  if (cause instanceof RatchetError) return cause.message;
  const isSlip = cause instanceof TypeError || cause instanceof RangeError || cause instanceof ReferenceError;
  if (!isSlip && cause instanceof Error) return `some in which the tokenizer cannot be read: ${cause.message}`;
  return 'a tokenizer.json or tokenizer_config.json that lacks a key, or has one of another type';
}

function badTokenizer(where: string, received: string, cause?: unknown): RatchetError {
  const message = `${where}: expected the files of a Hugging Face fast tokenizer, got ${received}.`;
  return new RatchetError('ModelUnsupported', message, { cause });
}
