import { readMessage } from '../../core/rl/rollout/message-parts.ts';
import type { ChatMessage, MessageToolCall, Turn } from '../../core/rl/rollout/rollout.ts';
import type { JsonValue } from '../../config/run-spec.ts';
import type { SampledCall, SampleOptions } from '../../backends/environments/types.ts';
import type { Endpoint, SamplePlace } from '../../backends/inference/index.ts';
import { RatchetError } from '../../core/errors.ts';
import { promptTokensMost, withinBudget } from '../../core/rl/budget-call.ts';
import type { RolloutBudget } from '../budget/rollout-budget.ts';
import { promptName, RecalledTurns } from './recalled-turns.ts';
import type { OnTurn, PlayedPolicy } from './sample-policy.ts';

interface ChatPolicyOptions {
  readonly endpoint: Pick<Endpoint, 'chat'>;
  /** Request fields (`max_tokens`, `temperature`, …) for environments that set none themselves. */
  readonly fields: Readonly<Record<string, JsonValue>>;
  readonly signal?: AbortSignal;
  /** Place of the turns, for servers that cache related requests together. */
  readonly place?: SamplePlace;
  /** Of the rollout; missing = nothing is limited. */
  readonly budget?: RolloutBudget | undefined;
  /** Calls that earlier attempts of the rollout finished. */
  readonly recorded?: readonly Turn[];
  /** Called with every turn and its index in the rollout. A call returns when this has, so that it is stored. */
  readonly onTurn?: OnTurn;
}

/**
 * A model behind an API as an environment sees it: messages in, one turn out, no tokens. Tool calls accompany the text
 * in the API's form; an environment that knows only texts may ignore them.
 */
export function chatPolicy(options: ChatPolicyOptions): PlayedPolicy {
  const { endpoint, fields, signal, place, budget, onTurn } = options;
  const turns: Turn[] = [];
  const callIds: (readonly (string | undefined)[])[] = [];
  const recalled = new RecalledTurns(options.recorded ?? []);
  let failure: unknown = undefined;
  let asked = 0;

  const say = async (messages: readonly ChatMessage[], { tools, sampling, call }: SampleOptions) => {
    const own = call === undefined ? {} : fieldsOfCall(call, sampling ?? fields);
    const asked = { ...(sampling ?? fields), ...own };
    const most = budget ? mostTokens({ messages, tools }, asked) : { promptTokens: 0, maxTokens: 0 };
    const said = await withinBudget(
      budget,
      { ...most, signal },
      (maxTokens) => {
        const given = budget ? withMaxTokens(asked, maxTokens) : asked;
        return endpoint.chat({ messages, tools, fields: given, signal: call?.signal ?? signal, ...place });
      },
      // A server that does not count is taken to have used all.
      ({ usage }) => usage ?? { promptTokens: most.promptTokens, completionTokens: most.maxTokens },
    );
    return { turn: turnOf(said), callIds: said.callIds ?? [] };
  };

  /** Messages of a program have its calls, with their ids. */
  const answer = async (messages: readonly ChatMessage[], call: SampledCall, options: SampleOptions): Promise<Turn> => {
    const known = recalled.call(promptName(JSON.stringify([messages, options.tools ?? []]), call.constraints));
    if ('tokenIds' in known) return known;
    try {
      const { turn: said } = await say(messages, options);
      const turn = { ...said, heard: call.heard, call: { id: known.id, after: call.after } };
      await onTurn?.(turn, recalled.calls.length + turns.length);
      return turn;
    } catch (error) {
      recalled.release(known.id);
      throw error;
    }
  };

  return {
    turns,
    earlier: recalled.calls,
    keep: (ids) => void turns.push(...ids.flatMap((id) => recalled.take(id) ?? [])),
    get failure() {
      return failure;
    },
    async sample(messages, options: SampleOptions = {}): Promise<Turn> {
      failure = undefined;
      const read = messages.map(readMessage);
      try {
        if (options.call !== undefined) {
          const turn = await answer(read, options.call, options);
          turns.push(turn);
          return turn;
        }
        const position = asked++;
        const said = await say(withCalls(read, turns, callIds), options);
        callIds[position] = said.callIds;
        turns[position] = said.turn;
        void onTurn?.(said.turn, position);
        return said.turn;
      } catch (error) {
        if (options.call?.signal?.aborted !== true) failure = error;
        throw error;
      }
    },
  };
}

function turnOf(said: Awaited<ReturnType<Endpoint['chat']>>): Turn {
  return {
    promptTokenIds: said.promptTokenIds ?? [],
    tokenIds: said.tokenIds ?? [],
    logprobs: said.logprobs ?? [],
    text: said.text,
    ...(said.toolCalls === undefined ? {} : { toolCalls: said.toolCalls }),
    finishReason: said.finishReason,
    said: {
      usage: said.usage,
      ...(said.reasoning === undefined ? {} : { reasoning: said.reasoning }),
      ...(said.isRefusal === true ? { isRefusal: true } : {}),
    },
    policyStep: 0,
  };
}

/** What a call wants less of than the evaluation allows, and what it demands of its answer. */
function fieldsOfCall(
  { maxTokens, stop, constraints: { toolChoice, responseFormat } = {} }: SampledCall,
  fields: ChatPolicyOptions['fields'],
): Record<string, JsonValue> {
  const { max_tokens: most } = fields;
  const isLess = maxTokens !== undefined && !(typeof most === 'number' && most <= maxTokens);
  return {
    ...(isLess ? { max_tokens: maxTokens } : {}),
    ...(stop === undefined ? {} : { stop: [...stop] }),
    ...(toolChoice === undefined ? {} : { tool_choice: toolChoice }),
    ...(responseFormat === undefined ? {} : { response_format: responseFormat }),
  };
}

/**
 * An API needs calls in the assistant's message and their ids in the answers. Our environments repeat only the text, so
 * both are restored: the calls of the turn at that position, and its answers in the order of the calls.
 */
function withCalls(
  messages: readonly ChatMessage[],
  turns: readonly Turn[],
  callIds: readonly (readonly (string | undefined)[])[],
): ChatMessage[] {
  let next = 0;
  let unanswered: MessageToolCall[] = [];
  return messages.map((message) => {
    if (message.role === 'assistant') {
      const at = turns.findIndex(({ text }, i) => i >= next && text === message.content);
      if (at < 0) return message;
      next = at + 1;
      const calls = message.tool_calls ?? callsOf(turns[at]!, at, callIds[at]);
      unanswered = [...calls];
      return calls.length === 0 ? message : { ...message, tool_calls: calls };
    }
    if (message.role !== 'tool') return message;
    const call = unanswered.shift();
    return message.tool_call_id !== undefined || call === undefined ? message : { ...message, tool_call_id: call.id };
  });
}

/** Calls keep the server's ids: Mistral's server accepts no others. */
function callsOf(
  { toolCalls = [] }: Turn,
  position: number,
  ids: readonly (string | undefined)[] = [],
): MessageToolCall[] {
  return toolCalls.map((call, i) => ({ id: ids[i] ?? `call_${position}_${i}`, type: 'function', function: call }));
}

const tokenFields = ['max_tokens', 'max_completion_tokens'] as const;

/** Upper bound of a turn's tokens at a server that counts them itself. */
function mostTokens(
  asked: { readonly messages: readonly ChatMessage[]; readonly tools: SampleOptions['tools'] },
  fields: Readonly<Record<string, JsonValue>>,
): { readonly promptTokens: number; readonly maxTokens: number } {
  const maxTokens = tokenFields.map((name) => fields[name]).find((value) => typeof value === 'number') ?? 0;
  return { promptTokens: promptTokensMost(asked), maxTokens };
}

/** A rollout with little left samples less. */
function withMaxTokens(fields: Readonly<Record<string, JsonValue>>, most: number): Readonly<Record<string, JsonValue>> {
  const name = tokenFields.find((one) => typeof fields[one] === 'number');
  if (name !== undefined) return { ...fields, [name]: most };
  throw new RatchetError(
    'ConfigInvalid',
    'A budget limits tokens or money, and nothing bounds the tokens of an answer: set max_tokens of the sampling.',
  );
}
