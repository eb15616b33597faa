import { RatchetError } from '../core/errors.ts';
import type { ChatMessage } from '../core/rl/rollout.ts';
import { Detokenizer, type ModelFolder, type Sampler } from '../engine/index.ts';

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

/** Messages so far, and the model that goes on with them. */
export class Conversation {
  readonly #model: ModelFolder;
  readonly #sampler: Sampler;
  readonly #sampling: ConversationSampling;
  #messages: ChatMessage[] = [];
  #turn = 0;

  /** `before`: what was said already; nothing where it is left out. */
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

  /** Streams the answer to `print`. One that is aborted is kept as far as it came; one that is refused is not asked again. */
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

  /** What the model's own template makes of it; without one, the plain text. */
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

/** Up to where a text can be shown: before a stop text, and before what may become one. */
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
