import { RatchetError } from '../../core/errors.ts';
import { hash32 } from '../../core/random.ts';
import { requireText } from '../../core/rl/rollout/message-parts.ts';
import type { ChatMessage, Turn } from '../../core/rl/rollout/rollout.ts';
import type { SamplingSettings } from '../../core/settings/rollouts.ts';
import { ConversationPrompts, type RenderedPrompt } from '../../engine/model/template/conversation-prompts.ts';
import type { ChatTokenizer } from '../../engine/model/tokenizer/tokenizer.ts';
import {
  isThoughtOpen,
  parsersOf,
  readSpeech,
  type Speech,
  type SpeechParsers,
  tokensRead,
} from '../../engine/speech/speech.ts';
import type { CallConstraints, Policy, SampledCall, SampleOptions } from '../../backends/environments/types.ts';
import { heardTokens } from './heard-tokens.ts';
import { promptName, RecalledTurns } from './recalled-turns.ts';
import type { RolloutBudget } from '../budget/rollout-budget.ts';
import { speakWithin } from '../budget/budgeted-policy.ts';
import type { Speak } from '../teacher/teacher.ts';
import type { Inference, Sample, SamplePlace } from '../../backends/inference/index.ts';
import type { ServedPolicy } from '../../core/rl/run-state.ts';

export interface SamplePolicyOptions {
  readonly inference: Pick<Inference, 'sample'>;
  readonly tokenizer: ChatTokenizer;
  readonly served: ServedPolicy;
  /** The version that a turn is sampled from, asked before each; missing = `served`. */
  readonly newest?: (() => Promise<ServedPolicy>) | undefined;
  readonly sampling: SamplingSettings;
  /** How the model writes calls and thoughts, where the config says so; missing = its chat template decides. */
  readonly parsers?: Partial<SpeechParsers> | undefined;
  readonly signal?: AbortSignal;
  /** Most tokens in a first prompt; null or missing = the server's own limit. */
  readonly promptTokensMax?: number | null;
  /** Place of the turns, for servers that cache related requests together. */
  readonly place?: SamplePlace;
  /** Whether the turns will be trained on. */
  readonly isTrained?: boolean;
  /** Messages of these roles are trained when they follow a turn of the policy: turns say where. */
  readonly learnedRoles?: ReadonlySet<string>;
  /** Turns that this rollout finished before; each is returned instead of sampled, if its prompt is the same. */
  readonly recorded?: readonly Turn[];
  /** Generates the turns in place of the policy; missing = the policy does. */
  readonly speak?: Speak | undefined;
  /** Of the rollout; missing = nothing is limited. */
  readonly budget?: RolloutBudget | undefined;
  /** Called with the version of every turn as it begins, including recorded ones. */
  readonly onBegin?: (step: number) => void;
  /** Called with every sampled turn and its index in the rollout. A call returns when this has, so that it is stored. */
  readonly onTurn?: OnTurn;
  /** Called with every turn that is taken from `recorded`; `isKept`: it was not asked for (`Policy.keep`). */
  readonly onRecall?: (turn: Turn, isKept: boolean) => void;
}

/**
 * `position` counts the turns of environments that ask for one after the other; of a call, those that were sampled.
 * `seconds`: from the prompt to the turn.
 */
export type OnTurn = (turn: Turn, position: number, seconds?: number) => void | Promise<void>;

/** A policy in one rollout: its turns, and its failure. */
export interface PlayedPolicy extends Policy {
  /** Finished turns, in order. */
  readonly turns: readonly Turn[];
  /** Error of the last call, however the environment handled it; not of one that nobody waited for any more. */
  readonly failure: unknown;
}

/**
 * The model as an environment sees it: messages in, one turn out, with every random number keyed by the turn's place. A
 * prompt that continues an earlier turn begins with exactly that turn's tokens.
 */
export function samplePolicy(
  options: SamplePolicyOptions,
  seedOfTurn: (turn: number | string) => number,
): PlayedPolicy {
  return new SamplePolicy(options, seedOfTurn);
}

class SamplePolicy implements PlayedPolicy {
  readonly turns: Turn[] = [];
  failure: unknown = undefined;
  readonly #options: SamplePolicyOptions;
  readonly #speak: Speak;
  readonly #seedOfTurn: (turn: number | string) => number;
  readonly #prompts: ConversationPrompts;
  #recalledTurns: RecalledTurns | undefined;
  #asked = 0;
  #sampledCalls = 0;
  #messagesBefore = 0;

  constructor(options: SamplePolicyOptions, seedOfTurn: (turn: number | string) => number) {
    this.#options = options;
    this.#speak = speakWithin(options.budget, options.speak ?? ((request) => options.inference.sample(request)));
    this.#seedOfTurn = seedOfTurn;
    this.#prompts = new ConversationPrompts(options.tokenizer);
  }

  /** Made when it is asked: most rollouts begin without a recorded turn. */
  get #recalled(): RecalledTurns {
    return (this.#recalledTurns ??= new RecalledTurns(this.#options.recorded ?? []));
  }

  get earlier(): readonly Turn[] {
    return this.#recalled.calls;
  }

  keep(ids: readonly string[]): void {
    const turns = ids.flatMap((id) => this.#recalled.take(id) ?? []);
    const continued = new Set(turns.map(({ call }) => call!.after));
    for (const turn of turns) {
      this.#adopt(turn, true);
      this.turns.push(turn);
      if (continued.has(turn.call!.id)) continue;
      // The next prompt of its conversation begins with exactly its tokens.
      const { promptTokenIds, tokenIds } = turn;
      const text = this.#options.tokenizer.decode(promptTokenIds, { skipSpecialTokens: false });
      this.#prompts.said({ text, tokenIds: promptTokenIds }, tokenIds);
    }
  }

  tokenTexts(tokenIds: readonly number[]): string[] {
    return tokenIds.map((id) => this.#options.tokenizer.tokenText(id));
  }

  countTokens(messages: readonly ChatMessage[], { tools }: Pick<SampleOptions, 'tools'> = {}): number {
    const { tokenizer, sampling } = this.#options;
    return tokenizer.renderChat(messages, { tools, templateArguments: sampling.templateArguments }).length;
  }

  async sample(messages: readonly ChatMessage[], { tools, call }: SampleOptions = {}): Promise<Turn> {
    this.failure = undefined;
    const position = call === undefined ? this.#asked++ : null;
    // The policy's own last message comes before these.
    const since = position === 0 ? messages.length : this.#messagesBefore + 1;
    const heardFrom = call === undefined ? since : messages.length - call.heard.length;
    this.#messagesBefore = messages.length;
    try {
      requireText(messages);
      const { tokenizer, promptTokensMax = null, sampling } = this.#options;
      const { templateArguments } = sampling;
      const prompt = this.#prompts.render(messages, { tools, templateArguments });
      const isFirst = call === undefined ? position === 0 : call.after === null;
      if (isFirst) requireShort(tokenizer, { messages, templateArguments }, promptTokensMax);
      const asked = { messages, heardFrom, tools, call };
      if (position === null) return await this.#answer(prompt, asked);
      const known = this.#options.recorded?.length ? this.#recalled.at(position, prompt.tokenIds) : undefined;
      if (known) this.#adopt(known);
      const from = performance.now();
      const turn = known ?? (await this.#say(position, prompt, asked));
      this.turns[position] = turn;
      this.#prompts.said(prompt, turn.tokenIds);
      if (!known) void this.#options.onTurn?.(turn, position, secondsSince(from));
      return turn;
    } catch (error) {
      if (call?.signal?.aborted !== true) this.failure = error;
      throw error;
    }
  }

  /** Takes over a turn of an earlier attempt. */
  #adopt(turn: Turn, isKept = false): void {
    const { policyStep, promptTokenIds, tokenIds } = turn;
    this.#options.onBegin?.(policyStep);
    this.#options.onRecall?.(turn, isKept);
    this.#options.budget?.adopt({ promptTokens: promptTokenIds.length, completionTokens: tokenIds.length });
  }

  /** A call of a program: any number at once, in any order. */
  async #answer(prompt: RenderedPrompt, asked: Asked): Promise<Turn> {
    const known = this.#recalled.call(promptName(prompt.tokenIds, asked.call?.constraints));
    const isKnown = 'tokenIds' in known;
    if (isKnown) this.#adopt(known);
    const turn = isKnown ? known : await this.#sampleCall(known.id, prompt, asked);
    this.turns.push(turn);
    this.#prompts.said(prompt, turn.tokenIds);
    return turn;
  }

  async #sampleCall(id: string, prompt: RenderedPrompt, asked: Asked): Promise<Turn> {
    const since = performance.now();
    try {
      const turn = await this.#say(id, prompt, asked);
      await this.#options.onTurn?.(turn, this.earlier.length + this.#sampledCalls++, secondsSince(since));
      return turn;
    } catch (error) {
      this.#recalled.release(id);
      throw error;
    }
  }

  /** Refuses what sampling token by token cannot see to: models write calls in a form of their own. */
  #constraints({ constraints = {} }: Partial<SampledCall> = {}): CallConstraints {
    const cannot = (field: string, why: string): never => {
      throw new RatchetError('Unsupported', `"${field}" is not supported for this policy: ${why}. Leave it out.`);
    };
    if (constraints.toolChoice !== undefined)
      cannot('tool_choice', 'a call cannot be forced, only "auto" and "none" have an effect');
    if (constraints.responseFormat !== undefined && this.#options.speak !== undefined)
      cannot('response_format', "its turns are a teacher's");
    return constraints;
  }

  /** A new turn behind a prompt. `key` names its place in the rollout. */
  async #say(key: number | string, prompt: RenderedPrompt, asked: Asked): Promise<Turn> {
    const { tokenizer, served, newest, isTrained, place, parsers } = this.#options;
    const { templateArguments, contextTokens = Infinity, ...sampling } = this.#options.sampling;
    const { messages, heardFrom, tools, call } = asked;
    const { tokenIds: promptTokenIds } = prompt;
    const { responseFormat } = this.#constraints(call);
    const signal = call?.signal ?? this.#options.signal;
    const stop = call?.stop === undefined ? sampling.stop : [...sampling.stop, ...call.stop];
    const most = Math.min(sampling.maxTokens, call?.maxTokens ?? Infinity, contextTokens - promptTokenIds.length);
    // At least one token: a prompt that leaves none is for the server to refuse, with its own message.
    const maxTokens = Math.max(1, most);
    const policy = newest ? await newest() : served;
    this.#options.onBegin?.(policy.version.step);
    const trained = isTrained === true ? { isTrained } : {};
    const seed = this.#seedOfTurn(key);
    const format = responseFormat === undefined ? {} : { responseFormat };
    const request = { ...sampling, stop, ...place, ...trained, ...format, policy, promptTokenIds, maxTokens, seed, signal }; // prettier-ignore
    const sample = await this.#speak(request, { messages, tools });
    requireTokens(sample);
    requireFinite(sample);
    const text = beforeStop(tokenizer.decode(sample.tokenIds), stop);
    const template = { tools, templateArguments };
    const { content, reasoning, toolCalls } = heardIn(sample, prompt.text, { tokenizer, parsers, ...template, stop });
    const { servedStep = policy.version.step, servedThrough, ...sampled } = sample;
    const heard = { messages, from: heardFrom, roles: this.#options.learnedRoles ?? noRoles };
    const heardAt = heard.roles.size === 0 ? [] : heardTokens(tokenizer, prompt, heard, template);
    return {
      promptTokenIds,
      ...sampled,
      text,
      ...(content === text ? {} : { content }),
      ...(reasoning === '' ? {} : { reasoning }),
      ...(toolCalls.length === 0 ? {} : { toolCalls }),
      ...(call === undefined ? {} : { heard: call.heard }),
      ...(heardAt.length === 0 ? {} : { heardAt }),
      ...(call === undefined ? {} : { call: { id: String(key), after: call.after } }),
      policyStep: servedStep,
      ...(servedThrough === undefined ? {} : { policyStepEnd: servedThrough }),
    };
  }
}

function secondsSince(ms: number): number {
  return Math.round(performance.now() - ms) / 1000;
}

interface Asked {
  readonly tools: SampleOptions['tools'] | undefined;
  readonly call: SampleOptions['call'] | undefined;
  readonly messages: readonly ChatMessage[];
  /** Index of the first message that is new. */
  readonly heardFrom: number;
}

/** Parses reasoning, calls and text of a sample, including the special tokens that mark them. */
function heardIn(
  { tokenIds, finishReason }: Sample,
  prompt: string,
  {
    tokenizer,
    stop,
    parsers: chosen,
    tools,
    templateArguments,
  }: Pick<SamplePolicyOptions, 'tokenizer' | 'parsers'> & TemplateUse & { readonly stop: readonly string[] },
): Speech {
  const parsers = parsersOf(tokenizer.templateText(tools !== undefined), chosen);
  const hasEnd = finishReason === 'stop' && tokenizer.isSpecial(tokenIds.at(-1)!);
  const spoken = tokenizer.decodeKeeping(tokenIds.slice(0, hasEnd ? -1 : undefined), tokensRead(parsers));
  const place = { tools, parsers, templateArguments, isThoughtOpen: isThoughtOpen(prompt) };
  return readSpeech(beforeStop(spoken, stop), place);
}

type TemplateUse = Pick<SamplingSettings, 'templateArguments'> & {
  readonly tools: SampleOptions['tools'] | undefined;
};

const noRoles: ReadonlySet<string> = new Set();

/** Measured as in verifiers' trainers: the example's prompt, without its tools. */
function requireShort(
  tokenizer: ChatTokenizer,
  { messages, templateArguments }: { messages: readonly ChatMessage[]; templateArguments: Record<string, unknown> },
  tokensMax: number | null,
): void {
  if (tokensMax === null) return;
  const { length } = tokenizer.renderChat(messages, { templateArguments });
  if (length <= tokensMax) return;
  throw new RatchetError('PromptTooLong', `The prompt has ${length} tokens; max_prompt_len is ${tokensMax}.`);
}

/** Text is never tokenized again for training or for the next turn. */
function requireTokens({ tokenIds }: Partial<Sample>): void {
  if (Array.isArray(tokenIds) && tokenIds.length > 0) return;
  throw new RatchetError(
    'InferenceRejected',
    'The inference server gave no token ids for what it sampled. Expected the ids of every token with their log probabilities (vLLM: return_token_ids); without them nothing of it can be trained on.',
  );
}

/** The names of a rollout and its group, as servers and their headers may have them. */
export function samplePlace(group: readonly (string | number)[], index: number): SamplePlace {
  const name = group.map((word) => encodeURIComponent(word)).join('/');
  return { session: `${name}/${index}`, group: name };
}

/** Removes a stop text from the end of a turn, as vLLM does. */
function beforeStop(text: string, stop: readonly string[]): string {
  const ends = stop.map((end) => text.indexOf(end)).filter((at) => at >= 0);
  return ends.length === 0 ? text : text.slice(0, Math.min(...ends));
}

/** A value that is not finite must not reach a batch, where it would pass for a policy that is certain. */
function requireFinite({ tokenIds, logprobs, samplingLogprobs }: Sample): void {
  for (const given of [logprobs, samplingLogprobs]) {
    const strange = given?.find((logprob) => !Number.isFinite(logprob));
    if (strange !== undefined) throw new Error(`The inference server gave a token the log probability ${strange}.`);
    if (given && given.length !== tokenIds.length)
      throw new Error(`The inference server gave ${tokenIds.length} tokens and ${given.length} log probabilities.`);
  }
}

/** 52 bits from the turn's place in the run. */
export function turnSeed(...place: readonly (number | string)[]): number {
  return hash32('turn', ...place) * 2 ** 20 + (hash32('turn again', ...place) >>> 12);
}
