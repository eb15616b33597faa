import type { ChatOptions, TemplateMessage } from './chat-template.ts';
import type { ChatTokenizer } from './tokenizer.ts';

/** A rendered conversation and its tokens. */
export interface RenderedPrompt {
  readonly text: string;
  readonly tokenIds: readonly number[];
  /** How much of its end was tokenized behind what was said before; absent where all of it was. */
  readonly rest?: { readonly characters: number; readonly tokens: number };
}

/**
 * The prompts of one rollout, token in, token out. A prompt whose text goes on from an earlier prompt and what was sampled
 * after it begins with those very tokens, also where a tokenizer would have cut the sampled text otherwise; only the rest is
 * tokenized. A template that rewrites the past (`<think>` stripped) gives another text, which is tokenized anew. So is one
 * where the tokenizer would join the end of what was sampled with what follows: a model that reads the conversation
 * elsewhere never meets such a seam. In chat templates what follows begins with a special token, and there is none.
 */
export class ConversationPrompts {
  readonly #tokenizer: ChatTokenizer;
  /** The longest first: the conversation that goes on is mostly the one that was last asked for. */
  readonly #said: Said[] = [];

  constructor(tokenizer: ChatTokenizer) {
    this.#tokenizer = tokenizer;
  }

  /** The prompt after which the assistant's next message is sampled. */
  render(messages: readonly TemplateMessage[], options: ChatOptions = {}): RenderedPrompt {
    // First prompts are shared by the rollouts of a group, so they are kept.
    if (this.#said.length === 0) return this.#tokenizer.renderPrompt(messages, options);
    const text = this.#tokenizer.renderChatText(messages, { ...options, addGenerationPrompt: true });
    for (const said of this.#said) {
      const continued = this.#continued(said, text);
      if (continued !== null) return { text, ...continued };
    }
    return { text, tokenIds: this.#tokenizer.encode(text) };
  }

  /** Notes what was sampled after a prompt. */
  said(prompt: RenderedPrompt, tokenIds: readonly number[]): void {
    const at = this.#said.findIndex((other) => other.prompt.text.length < prompt.text.length);
    this.#said.splice(at < 0 ? this.#said.length : at, 0, { prompt, tokenIds });
  }

  /** The tokens of a text that goes on from a turn; null where it does not, or not between two tokens. */
  #continued(said: Said, text: string): Pick<RenderedPrompt, 'tokenIds' | 'rest'> | null {
    const { prompt, tokenIds } = said;
    if (!text.startsWith(prompt.text)) return null;
    said.texts ??= this.#textsOf(said); // most turns are not gone on from
    const spoken = said.texts.find((form) => text.startsWith(form, prompt.text.length));
    if (spoken === undefined) return null;
    const more = text.slice(prompt.text.length + spoken.length);
    const rest = this.#tokenizer.encodeAfter(spoken === '' ? prompt.text : spoken, more);
    if (!rest) return null;
    return {
      tokenIds: [...prompt.tokenIds, ...tokenIds, ...rest],
      rest: { characters: more.length, tokens: rest.length },
    };
  }

  /**
   * What was sampled as a text, special tokens included: by itself, and behind its prompt. Tokenizers that mark the beginnings
   * of words leave the blank before the first word out of a text that begins with it.
   */
  #textsOf({ prompt, tokenIds }: Said): string[] {
    const before = prompt.tokenIds.slice(-1);
    const [alone, without, whole] = [tokenIds, before, [...before, ...tokenIds]].map((ids) =>
      this.#tokenizer.decode(ids, { skipSpecialTokens: false }),
    ) as [string, string, string];
    return whole.startsWith(without) ? [alone, whole.slice(without.length)] : [alone];
  }
}

interface Said {
  readonly prompt: RenderedPrompt;
  readonly tokenIds: readonly number[];
  texts?: readonly string[];
}
