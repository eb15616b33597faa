import { RatchetError } from '../../core/errors.ts';
import type { ChatMessage } from '../../core/rl/rollout/rollout.ts';
import { Detokenizer, type ModelFolder, type Sampler } from '../../engine/index.ts';

/** How a model answers in a conversation. */
export interface ConversationSampling {
  readonly system: string | null;
  readonly temperature: number;
  readonly topP: number;
  readonly topK: number;
  readonly minP: number;
  readonly maxTokens: number;
  readonly stop: readonly string[];
  readonly templateArguments: Readonly<Record<string, unknown>>;
  readonly seed: number;
}

/** The messages so far, and the model that continues them. */
export class Conversation {
  readonly #model: ModelFolder;
  readonly #sampler: Sampler;
  readonly #sampling: ConversationSampling;
  #messages: ChatMessage[] = [];
  #turn = 0;

  /** `before`: earlier messages; empty by default. */
  constructor(
    model: ModelFolder,
    sampler: Sampler,
    sampling: ConversationSampling,
    before: readonly ChatMessage[] = [],
  ) {
    this.#model = model;
    this.#sampler = sampler;
    this.#sampling = sampling;
    this.forget();
    this.#messages.push(...before);
    this.#turn = before.filter(({ role }) => role === 'assistant').length;
  }

  forget(): void {
    const { system } = this.#sampling;
    this.#messages = system === null ? [] : [{ role: 'system', content: system }];
  }

  /**
   * Streams the answer to `print`. An aborted answer stays in the conversation as far as it came; a refused one is not
   * repeated.
   */
  async say(text: string, print: (piece: string) => void, signal: AbortSignal): Promise<'stop' | 'length' | 'aborted'> {
    const { tokenizer, parameters, config } = this.#model;
    const { stop, system: _, templateArguments: __, ...sampling } = this.#sampling;
    const asked: ChatMessage[] = [...this.#messages, { role: 'user', content: text }];
    const promptTokenIds = this.#prompt(asked);
    const detokenizer = new Detokenizer(tokenizer);
    let [said, told] = ['', 0];
    const tell = (isLast: boolean): void => {
      const end = endOf(said, stop, isLast);
      if (end > told) print(said.slice(told, end));
      told = Math.max(told, end);
    };
    const room = Math.max(1, Math.min(sampling.maxTokens, config.positionsMax - promptTokenIds.length));
    const request = {
      ...sampling,
      maxTokens: room,
      promptTokenIds,
      seed: sampling.seed + this.#turn++,
      stopTokenIds: config.endTokenIds,
    };
    const isFinished = (): boolean => stop.some((ending) => said.includes(ending));
    const onToken = (_index: number, tokenId: number): void => {
      if (config.endTokenIds.includes(tokenId)) return;
      said += detokenizer.push(tokenId);
      tell(false);
    };
    const reason = await this.#sampler
      .generate(parameters, [{ ...request, isFinished }], { signal, onToken })
      .then(([result]) => result!.finishReason)
      .catch((error: unknown) => {
        if (signal.aborted) return 'aborted' as const;
        throw error;
      });
    said += detokenizer.finish();
    tell(true);
    this.#messages = [...asked, { role: 'assistant', content: said.slice(0, endOf(said, stop, true)) }];
    return reason;
  }

  /** Prompt from the model's chat template; plain text without one. */
  #prompt(messages: readonly ChatMessage[]): readonly number[] {
    const { tokenizer, config } = this.#model;
    const ids = tokenizer.canRenderChat
      ? tokenizer.renderChat(messages, { templateArguments: this.#sampling.templateArguments })
      : tokenizer.encode(messages.map(({ content }) => content).join('\n'));
    if (ids.length < config.positionsMax) return ids;
    throw new RatchetError(
      'PromptTooLong',
      `The conversation has ${ids.length} tokens; the model has ${config.positionsMax} positions. /new begins another one.`,
    );
  }
}

/** Length of the text that can be shown: up to a stop text, or to the beginning of a possible one. */
function endOf(text: string, stop: readonly string[], isLast: boolean): number {
  const found = stop.map((ending) => text.indexOf(ending)).filter((at) => at >= 0);
  if (found.length > 0) return Math.min(...found);
  if (isLast) return text.length;
  const held = Math.max(
    0,
    ...stop.flatMap((ending) =>
      Array.from({ length: ending.length - 1 }, (_, i) => i + 1).filter((n) => text.endsWith(ending.slice(0, n))),
    ),
  );
  return text.length - held;
}
