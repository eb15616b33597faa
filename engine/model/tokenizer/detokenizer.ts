import type { ChatTokenizer } from './tokenizer.ts';

/** Incomplete UTF-8 decodes to it. */
const torn = '\u{FFFD}';
/** Tokens decoded together at most, and those kept when they become more. */
const windowMax = 16;
/** An incomplete character has at most 3 bytes, and a token at least one: the next token depends on no earlier ones. */
const windowKept = 8;

/**
 * The text of token ids that arrive one by one. The pieces of `push` and `finish` add up to the text of all ids decoded
 * at once. No piece ends within a character whose other bytes may still come.
 */
export class Detokenizer {
  readonly #tokenizer: ChatTokenizer;
  readonly #skipSpecialTokens: boolean;
  /** The last tokens; the first of them is there because decoders may treat the first token of a text differently. */
  #window: number[] = [];
  /** Characters of the window's text that were handed out. */
  #toldLength = 0;

  constructor(tokenizer: ChatTokenizer, options: { readonly skipSpecialTokens?: boolean } = {}) {
    this.#tokenizer = tokenizer;
    this.#skipSpecialTokens = options.skipSpecialTokens ?? true;
  }

  /** The text that is certain with this token, often that of the token, '' inside of a character. */
  push(tokenId: number): string {
    if (this.#skipSpecialTokens && this.#tokenizer.isSpecial(tokenId)) return '';
    this.#window.push(tokenId);
    const text = this.#text(this.#window);
    // Only the last replacement character may be a beginning: those before it could not be completed.
    const piece = text.slice(this.#toldLength, text.endsWith(torn) ? -1 : undefined);
    this.#toldLength += piece.length;
    this.#shorten(text);
    return piece;
  }

  /** Ends the text: an unfinished character becomes a replacement character. */
  finish(): string {
    const rest = this.#text(this.#window).slice(this.#toldLength);
    this.#window = [];
    this.#toldLength = 0;
    return rest;
  }

  #shorten(text: string): void {
    if (this.#window.length > windowMax) this.#keep(windowKept, text);
    else if (this.#window.length > 1 && !text.endsWith(torn) && this.#endsWithLast(text)) this.#keep(1, text);
  }

  /** Otherwise the last token begins inside of a character. */
  #endsWithLast(text: string): boolean {
    return text.endsWith(this.#text(this.#window.slice(-1)));
  }

  #keep(count: number, text: string): void {
    const untoldLength = text.length - this.#toldLength;
    this.#window = this.#window.slice(-count);
    this.#toldLength = this.#text(this.#window).length - untoldLength;
  }

  #text(tokenIds: readonly number[]): string {
    return this.#tokenizer.decode(tokenIds, { skipSpecialTokens: this.#skipSpecialTokens });
  }
}
