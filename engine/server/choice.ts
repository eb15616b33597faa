import type { ToolCall } from '../../core/rl/rollout.ts';
import { Detokenizer } from '../model/detokenizer.ts';
import type { ChatTokenizer } from '../model/tokenizer.ts';
import type { SampleResult } from '../sample/sampler.ts';
import { StopStringScanner } from './stop-strings.ts';
import { type CompletionPart, ToolCallReader } from './tool-calls.ts';

export interface ChoiceOptions {
  readonly tokenizer: ChatTokenizer;
  /** The request's own; named as the reason when one of them ends the choice. */
  readonly stopTokenIds: readonly number[];
  /** All tokens that end the choice. Their text is left out unless `includeStop`. */
  readonly endingTokenIds: readonly number[];
  readonly stops: readonly string[];
  readonly includeStop: boolean;
  readonly skipSpecialTokens: boolean;
  readonly minTokens: number;
  /** Hermes tool calls are told apart from the text. */
  readonly readsToolCalls: boolean;
  /** All but the first call are left out. */
  readonly singleToolCall: boolean;
}

/** What was sampled and said since the last look. */
export interface Delta {
  readonly tokenIds: readonly number[];
  readonly logprobs: readonly number[];
  readonly content: string;
  readonly toolCalls: readonly ToolCall[];
}

export interface ChoiceEnd {
  readonly finishReason: 'stop' | 'length' | 'tool_calls';
  /** The stop string or stop token id that ended the choice; null for the model's own end and for length. */
  readonly stopReason: string | number | null;
}

/**
 * One choice of an answer while it is sampled: token ids become text, the text ends at a stop string, tool calls are read
 * out of it. Token ids and logprobs are all of them, also those behind the cut, as vLLM gives them.
 */
export class Choice {
  readonly #options: ChoiceOptions;
  readonly #text: Detokenizer;
  readonly #stops: StopStringScanner;
  readonly #calls: ToolCallReader | null;
  readonly #silentTokenIds: ReadonlySet<number>;
  #count = 0;
  #callCount = 0;
  #tokenIds: number[] = [];
  #logprobs: number[] = [];
  #content: string[] = [];
  #toolCalls: ToolCall[] = [];

  constructor(options: ChoiceOptions) {
    this.#options = options;
    this.#text = new Detokenizer(options.tokenizer, { skipSpecialTokens: options.skipSpecialTokens });
    this.#stops = new StopStringScanner(options);
    this.#calls = options.readsToolCalls ? new ToolCallReader() : null;
    this.#silentTokenIds = new Set(options.includeStop ? [] : options.endingTokenIds);
  }

  /** Whether a stop string has come; the sampler asks after every token. */
  get isStopped(): boolean {
    return this.#stops.matched !== null;
  }

  add(tokenId: number, logprob: number): void {
    this.#tokenIds.push(tokenId);
    this.#logprobs.push(logprob);
    this.#count++;
    // The token that ends a choice is no text of it.
    if (this.#silentTokenIds.has(tokenId)) return;
    const piece = this.#text.push(tokenId);
    const canStop = this.#count > this.#options.minTokens;
    this.#tell(canStop ? this.#stops.push(piece) : piece);
  }

  /** All tokens of a choice at once; for choices without stop strings. */
  addAll(tokenIds: readonly number[]): void {
    const { tokenizer, skipSpecialTokens } = this.#options;
    const spoken = tokenIds.filter((id) => !this.#silentTokenIds.has(id));
    this.#tell(tokenizer.decode(spoken, { skipSpecialTokens }));
  }

  /** Nothing is added after it; the next delta holds what was held back. */
  finish(result: Pick<SampleResult, 'tokenIds' | 'finishReason'>): ChoiceEnd {
    if (!this.isStopped) this.#tell(this.#stops.push(this.#text.finish()) + this.#stops.finish());
    this.#hear(this.#calls?.finish() ?? []);
    const stopReason = this.#stops.matched ?? stopTokenOf(result, this.#options);
    if (this.#callCount > 0) return { finishReason: 'tool_calls', stopReason };
    return { finishReason: this.isStopped ? 'stop' : result.finishReason, stopReason };
  }

  /** What came since the last look. */
  takeDelta(): Delta {
    const delta = {
      tokenIds: this.#tokenIds,
      logprobs: this.#logprobs,
      content: this.#content.join(''),
      toolCalls: this.#toolCalls,
    };
    [this.#tokenIds, this.#logprobs, this.#content, this.#toolCalls] = [[], [], [], []];
    return delta;
  }

  #tell(text: string): void {
    if (text === '') return;
    if (this.#calls) this.#hear(this.#calls.push(text));
    else this.#content.push(text);
  }

  #hear(said: readonly CompletionPart[]): void {
    for (const part of said) {
      if ('content' in part) this.#content.push(part.content);
      else if (this.#callCount++ === 0 || !this.#options.singleToolCall) this.#toolCalls.push(part.toolCall);
    }
  }
}

function stopTokenOf(
  { tokenIds, finishReason }: Pick<SampleResult, 'tokenIds' | 'finishReason'>,
  options: ChoiceOptions,
): number | null {
  const last = tokenIds.at(-1);
  if (finishReason !== 'stop' || last === undefined) return null;
  return options.stopTokenIds.includes(last) ? last : null;
}
