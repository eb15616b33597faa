import type { ChatOptions, TemplateMessage } from './chat-template.ts';
import type { ChatTokenizer } from '../tokenizer/tokenizer.ts';

export interface RenderedPrompt {
  readonly text: string;
  readonly tokenIds: readonly number[];
  /** Size of the newly tokenized end behind the earlier turns; absent when the whole text was tokenized. */
  readonly rest?: { readonly characters: number; readonly tokens: number };
}

/**
 * The prompts of one rollout, token in, token out. A prompt that continues an earlier prompt and its completion reuses
 * their exact tokens, even where a tokenizer would split the sampled text differently; only the rest is tokenized. A
 * template that rewrites the past (strips `<think>`) gives another text, which is tokenized anew. So is a text whose
 * tokenization would merge the end of the completion with what follows: elsewhere the model never sees such a seam.
 * Chat templates continue with a special token, where no such seam exists.
 */
export class ConversationPrompts {
  readonly #tokenizer: ChatTokenizer;
  /** The longest first: the next prompt mostly continues the latest conversation. */
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

  said(prompt: RenderedPrompt, tokenIds: readonly number[]): void {
    const at = this.#said.findIndex((other) => other.prompt.text.length < prompt.text.length);
    this.#said.splice(at < 0 ? this.#said.length : at, 0, { prompt, tokenIds });
  }

  /** The tokens of a text that continues a turn; null if it does not, or only within a token. */
  #continued(said: Said, text: string): Pick<RenderedPrompt, 'tokenIds' | 'rest'> | null {
    const { prompt, tokenIds } = said;
    if (!text.startsWith(prompt.text)) return null;
    said.texts ??= this.#textsOf(said); // most turns are never continued
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
   * The completion as text, special tokens included: alone, and behind its prompt. Some tokenizers mark the beginnings
   * of words and drop the space before the first word of a text.
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
