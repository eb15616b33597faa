import type { ToolCall } from '../../../core/rl/rollout/rollout.ts';
import { Detokenizer } from '../../model/tokenizer/detokenizer.ts';
import type { ChatTokenizer } from '../../model/tokenizer/tokenizer.ts';
import type { SampleResult } from '../../sample/sampler.ts';
import { StopStringScanner } from './stop-strings.ts';
import { type Speech, type SpeechPlace, SpeechReader, tokensRead, defaultParsers } from '../../speech/speech.ts';

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
  /** How thoughts and calls are separated from the text; null = all of it is text. */
  readonly speech: SpeechPlace | null;
  /** All but the first call are left out. */
  readonly singleToolCall: boolean;
}

/** Tokens and text since the last delta. */
export interface Delta {
  readonly tokenIds: readonly number[];
  readonly logprobs: readonly number[];
  readonly content: string;
  readonly reasoning: string;
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
  readonly #speech: SpeechReader | null;
  /** Special tokens that calls and thoughts are read by. */
  readonly #kept: readonly string[];
  readonly #silentTokenIds: ReadonlySet<number>;
  #count = 0;
  #callCount = 0;
  #tokenIds: number[] = [];
  #logprobs: number[] = [];
  #content: string[] = [];
  #toolCalls: ToolCall[] = [];
  #reasoning = '';

  constructor(options: ChoiceOptions) {
    this.#options = options;
    this.#text = new Detokenizer(options.tokenizer, {
      skipSpecialTokens: options.skipSpecialTokens && options.speech === null,
    });
    this.#kept = options.speech === null ? [] : tokensRead(options.speech.parsers ?? defaultParsers);
    this.#stops = new StopStringScanner(options);
    this.#speech = options.speech === null ? null : new SpeechReader(options.speech);
    this.#silentTokenIds = new Set(options.includeStop ? [] : options.endingTokenIds);
  }

  /** Whether a stop string was found; the sampler checks after every token. */
  get isStopped(): boolean {
    return this.#stops.matched !== null;
  }

  add(tokenId: number, logprob: number): void {
    this.#tokenIds.push(tokenId);
    this.#logprobs.push(logprob);
    this.#count++;
    // The token that ends a choice is no text of it.
    if (this.#silentTokenIds.has(tokenId) || this.#isUnread(tokenId)) return;
    const piece = this.#text.push(tokenId);
    const canStop = this.#count > this.#options.minTokens;
    this.#tell(canStop ? this.#stops.push(piece) : piece);
  }

  /** All tokens of a choice at once; for choices without stop strings. */
  addAll(tokenIds: readonly number[]): void {
    const { tokenizer, skipSpecialTokens } = this.#options;
    const spoken = tokenIds.filter((id) => !this.#silentTokenIds.has(id) && !this.#isUnread(id));
    this.#tell(tokenizer.decode(spoken, { skipSpecialTokens: skipSpecialTokens && this.#speech === null }));
  }

  /** Ends the text; the next delta has the held-back rest. */
  finish(result: Pick<SampleResult, 'tokenIds' | 'finishReason'>): ChoiceEnd {
    if (!this.isStopped) this.#tell(this.#stops.push(this.#text.finish()) + this.#stops.finish());
    if (this.#speech) this.#hear(this.#speech.finish());
    const stopReason = this.#stops.matched ?? stopTokenOf(result, this.#options);
    if (this.#callCount > 0) return { finishReason: 'tool_calls', stopReason };
    return { finishReason: this.isStopped ? 'stop' : result.finishReason, stopReason };
  }

  takeDelta(): Delta {
    const delta = {
      tokenIds: this.#tokenIds,
      logprobs: this.#logprobs,
      content: this.#content.join(''),
      reasoning: this.#reasoning,
      toolCalls: this.#toolCalls,
    };
    [this.#tokenIds, this.#logprobs, this.#content, this.#toolCalls] = [[], [], [], []];
    this.#reasoning = '';
    return delta;
  }

  #isUnread(tokenId: number): boolean {
    const { tokenizer, skipSpecialTokens } = this.#options;
    if (this.#speech === null || !skipSpecialTokens || !tokenizer.isSpecial(tokenId)) return false;
    return !this.#kept.includes(tokenizer.tokenText(tokenId));
  }

  #tell(text: string): void {
    if (text === '') return;
    this.#content.push(this.#speech ? this.#speech.push(text) : text);
  }

  #hear({ reasoning, content, toolCalls }: Speech): void {
    this.#reasoning += reasoning;
    this.#content.push(content);
    this.#toolCalls.push(...(this.#options.singleToolCall ? toolCalls.slice(0, 1) : toolCalls));
    this.#callCount += toolCalls.length;
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
