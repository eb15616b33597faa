import { RatchetError } from '../../core/errors.ts';
import { hash32 } from '../../core/random.ts';
import { requireText } from '../../core/rl/rollout/message-parts.ts';
import type { ChatMessage, Turn } from '../../core/rl/rollout/rollout.ts';
import type { SamplingSettings } from '../../core/settings/rollouts.ts';
import { ConversationPrompts } from '../../engine/model/template/conversation-prompts.ts';
import type { ChatTokenizer } from '../../engine/model/tokenizer/tokenizer.ts';
import {
  isThoughtOpen,
  parsersOf,
  readSpeech,
  type Speech,
  type SpeechParsers,
  tokensRead,
} from '../../engine/speech/speech.ts';
import type { Policy, SampleOptions } from '../../backends/environments/types.ts';
import { heardTokens } from './heard-tokens.ts';
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
  /** Turns that this rollout finished before; each is returned instead of sampled, while the prompts agree. */
  readonly recorded?: readonly Turn[];
  /** Generates the turns in place of the policy; missing = the policy does. */
  readonly speak?: Speak;
  /** Of the rollout; missing = nothing is limited. */
  readonly budget?: RolloutBudget | undefined;
  /** Called with the version of every turn as it begins, including recorded ones. */
  readonly onBegin?: (step: number) => void;
  /** Called with every sampled turn and its index in the rollout. */
  readonly onTurn?: (turn: Turn, position: number) => void;
}

/** A policy in one rollout: its turns, and its failure. */
export interface PlayedPolicy extends Policy {
  /** Finished turns, in order. */
  readonly turns: readonly Turn[];
  /** Error of the last call, however the environment handled it. */
  readonly failure: unknown;
}

/**
 * The model as an environment sees it: messages in, one turn out, with every random number keyed by the turn's place. A
 * prompt that continues an earlier turn begins with exactly that turn's tokens.
 */
export function samplePolicy(options: SamplePolicyOptions, seedOfTurn: (turn: number) => number): PlayedPolicy {
  const {
    inference,
    tokenizer,
    served,
    newest = () => served,
    signal,
    place,
    recorded = [],
    onBegin,
    onTurn,
  } = options;
  const speak = speakWithin(options.budget, options.speak ?? ((request) => inference.sample(request)));
  const { templateArguments, contextTokens = Infinity, ...sampling } = options.sampling;
  const trained = options.isTrained === true ? { isTrained: true } : {};
  const prompts = new ConversationPrompts(tokenizer);
  const turns: Turn[] = [];
  let [asked, messagesBefore] = [0, 0];
  let isOnRecord = true;
  let failure: unknown = undefined;
  return {
    turns,
    get failure() {
      return failure;
    },
    async sample(messages, { tools }: SampleOptions = {}): Promise<Turn> {
      failure = undefined;
      const position = asked++;
      // The policy's own last message comes before these.
      const heardFrom = position === 0 ? messages.length : messagesBefore + 1;
      messagesBefore = messages.length;
      try {
        requireText(messages);
        const template = { tools, templateArguments };
        const prompt = prompts.render(messages, template);
        const { tokenIds: promptTokenIds } = prompt;
        if (position === 0) requireShort(tokenizer, { messages, templateArguments }, options.promptTokensMax ?? null);
        const known = recorded[position];
        isOnRecord &&= known !== undefined && isSame(known.promptTokenIds, promptTokenIds);
        if (isOnRecord && known !== undefined) {
          turns[position] = known;
          onBegin?.(known.policyStep);
          prompts.said(prompt, known.tokenIds);
          options.budget?.adopt({ promptTokens: promptTokenIds.length, completionTokens: known.tokenIds.length });
          return known;
        }
        const seed = seedOfTurn(position);
        // At least one token: a prompt that leaves none is for the server to refuse, with its own message.
        const maxTokens = Math.max(1, Math.min(sampling.maxTokens, contextTokens - promptTokenIds.length));
        const policy = await newest();
        onBegin?.(policy.version.step);
        const request = { ...sampling, ...place, ...trained, policy, promptTokenIds, maxTokens, seed, signal };
        const sample = await speak(request, { messages, tools });
        requireTokens(sample);
        requireFinite(sample);
        const text = beforeStop(tokenizer.decode(sample.tokenIds), sampling.stop);
        const { content, reasoning, toolCalls } = heardIn(sample, prompt.text, { ...options, ...template });
        const { servedStep = policy.version.step, servedThrough, ...sampled } = sample;
        const heard = { messages, from: heardFrom, roles: options.learnedRoles ?? noRoles };
        const heardAt = heard.roles.size === 0 ? [] : heardTokens(tokenizer, prompt, heard, template);
        const turn: Turn = {
          promptTokenIds,
          ...sampled,
          text,
          ...(content === text ? {} : { content }),
          ...(reasoning === '' ? {} : { reasoning }),
          ...(toolCalls.length === 0 ? {} : { toolCalls }),
          ...(heardAt.length === 0 ? {} : { heardAt }),
          policyStep: servedStep,
          ...(servedThrough === undefined ? {} : { policyStepEnd: servedThrough }),
        };
        turns[position] = turn;
        prompts.said(prompt, turn.tokenIds);
        onTurn?.(turn, position);
        return turn;
      } catch (error) {
        failure = error;
        throw error;
      }
    },
  };
}

/** Parses reasoning, calls and text of a sample, including the special tokens that mark them. */
function heardIn(
  { tokenIds, finishReason }: Sample,
  prompt: string,
  {
    tokenizer,
    sampling,
    parsers: chosen,
    tools,
    templateArguments,
  }: Pick<SamplePolicyOptions, 'tokenizer' | 'sampling' | 'parsers'> & TemplateUse,
): Speech {
  const parsers = parsersOf(tokenizer.templateText(tools !== undefined), chosen);
  const hasEnd = finishReason === 'stop' && tokenizer.isSpecial(tokenIds.at(-1)!);
  const spoken = tokenizer.decodeKeeping(tokenIds.slice(0, hasEnd ? -1 : undefined), tokensRead(parsers));
  const place = { tools, parsers, templateArguments, isThoughtOpen: isThoughtOpen(prompt) };
  return readSpeech(beforeStop(spoken, sampling.stop), place);
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

function isSame(a: readonly number[], b: readonly number[]): boolean {
  return a.length === b.length && a.every((token, i) => token === b[i]);
}

/** 52 bits from the turn's place in the run. */
export function turnSeed(...place: readonly (number | string)[]): number {
  return hash32('turn', ...place) * 2 ** 20 + (hash32('turn again', ...place) >>> 12);
}
