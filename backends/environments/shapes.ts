import { readMessage, type WrittenMessage } from '../../core/rl/message-parts.ts';
import type { ChatMessage, Example, ToolSchema, Turn } from '../../core/rl/rollout.ts';
import { readToolCalls } from '../../engine/speech/speech.ts';
import { requireKnownOptions } from './known-options.ts';
import { conversationOf } from './score.ts';
import type { Dataset, Demonstration, Environment, Policy, RolloutRecord, Rubric } from './types.ts';

/** The shapes an environment may have. Most need no more than a dataset, a rubric and an answer to each turn. */

export interface SingleTurnOptions {
  readonly name: string;
  readonly dataset: Dataset;
  /** Held out: shares no example with `dataset`. */
  readonly evalDataset: Dataset;
  readonly rubric: Rubric;
  readonly demonstrate?: (example: Example, random: () => number) => string;
}

/** An environment where the policy is asked once and answers once. */
export function singleTurn(options: SingleTurnOptions): Environment {
  requireKnownOptions<SingleTurnOptions>('singleTurn(…)', options, {
    name: true,
    dataset: true,
    evalDataset: true,
    rubric: true,
    demonstrate: true,
  });
  return {
    ...options,
    isDeterministic: true,
    isSingleTurn: true,
    async rollout(example, policy) {
      const turn = await policy.sample(example.prompt);
      return { turns: [turn], outcome: turn.finishReason === 'length' ? 'truncated' : 'ok' };
    },
  };
}

/** A conversation as far as it has come. */
export interface Conversation<State> {
  readonly example: Example;
  /** What `respond` gave last; before the first turn, what `setup` gave. */
  readonly state: State;
  /** The turns so far, the newest last. */
  readonly turns: readonly Pick<Turn, 'text' | 'toolCalls' | 'heard'>[];
  /** The example's prompt, and all that was said since. */
  readonly messages: readonly ChatMessage[];
}

/** What the environment says to the newest turn. Text is one user message; a message's content may be parts, pictures among them. */
export type Reply<State> = { readonly state: State } & (
  | { readonly say: string | readonly WrittenMessage[] }
  /** The rollout is complete; `policy_failure` = the policy broke the rules. Both carry a reward. */
  | { readonly end: 'ok' | 'policy_failure' }
);

export interface MultiTurnOptions<State> {
  readonly name: string;
  readonly dataset: Dataset;
  /** Held out: shares no example with `dataset`. */
  readonly evalDataset: Dataset;
  readonly rubric: Rubric<State>;
  /** Turns of the policy at most; after the last one nothing is said any more. */
  readonly maxTurns: number;
  /** What a rollout of this example begins with. Never changed in place: `respond` gives the next. */
  readonly setup: (example: Example) => State;
  /**
   * Answers the newest turn, or ends the rollout. Asked after the last turn as well, so that the state knows of it. Where the environment
   * is deterministic it depends on its argument alone: it is asked again with the same when a rollout goes on after a
   * crash, and when a stored rollout is scored.
   */
  readonly respond: (conversation: Conversation<State>) => Reply<State> | Promise<Reply<State>>;
  /** What the assistant would say next, possibly imperfect, for supervised warm-up. */
  readonly demonstrate?: (conversation: Conversation<State>, random: () => number) => string;
  /** False = `respond` may answer differently to the same: then unfinished rollouts begin anew, and the rubric has no state. */
  readonly isDeterministic?: boolean;
  readonly tools?: readonly ToolSchema[];
}

/**
 * An environment that answers each turn of the policy until it is complete, a turn is cut off by length, or `maxTurns` is
 * reached. Every rollout has a state of its own.
 */
export function multiTurn<State>(options: MultiTurnOptions<State>): Environment {
  requireKnownOptions<MultiTurnOptions<State>>('multiTurn(…)', options, {
    name: true,
    dataset: true,
    evalDataset: true,
    rubric: true,
    maxTurns: true,
    setup: true,
    respond: true,
    demonstrate: true,
    isDeterministic: true,
    tools: true,
  });
  const { name, dataset, evalDataset, maxTurns, isDeterministic = true, tools, setup, demonstrate } = options;
  if (!Number.isInteger(maxTurns) || maxTurns < 1) {
    throw new TypeError(`Environment "${name}": expected maxTurns to be a whole number from 1, received ${maxTurns}.`);
  }

  /** Speaks with whoever gives the turns. Turns that ended by length are not answered. */
  async function converse<T extends SpokenTurn>(
    example: Example,
    next: (conversation: Conversation<State>) => T | null | Promise<T | null>,
  ): Promise<{ turns: (T & { heard?: readonly ChatMessage[] })[]; state: State; outcome: RolloutRecord['outcome'] }> {
    const turns: (T & { heard?: readonly ChatMessage[] })[] = [];
    let state = setup(example);
    let heard: readonly ChatMessage[] = [];
    for (;;) {
      const messages = [...conversationOf(example, turns), ...heard];
      const turn = await next({ example, state, turns, messages });
      if (turn === null) return { turns, state, outcome: 'ok' };
      turns.push(heard.length === 0 ? turn : { ...turn, heard });
      if (turn.finishReason === 'length') return { turns, state, outcome: 'truncated' };
      const reply = await options.respond({ example, state, turns, messages: conversationOf(example, turns) });
      ({ state } = reply);
      if ('end' in reply) return { turns, state, outcome: reply.end };
      if (turns.length >= maxTurns) return { turns, state, outcome: 'ok' };
      heard = typeof reply.say === 'string' ? [{ role: 'user', content: reply.say }] : reply.say.map(readMessage);
    }
  }

  return {
    name,
    dataset,
    evalDataset,
    rubric: options.rubric,
    isDeterministic,
    isSingleTurn: maxTurns === 1,
    maxTurns,
    ...(tools === undefined ? {} : { tools }),
    async rollout(example: Example, policy: Policy): Promise<RolloutRecord> {
      const { turns, outcome } = await converse(example, ({ messages }) => policy.sample(messages, tools && { tools }));
      return { turns, outcome };
    },
    ...(isDeterministic && {
      async stateAfter(example: Example, stored: readonly Turn[]): Promise<State> {
        const { state } = await converse(example, ({ turns }) => stored[turns.length] ?? null);
        return state;
      },
    }),
    ...(demonstrate && {
      async demonstrate(example: Example, random: () => number): Promise<Demonstration> {
        const { turns } = await converse(example, (conversation) => {
          const text = demonstrate(conversation, random);
          return { text, finishReason: 'stop' as const, ...(tools && { toolCalls: readToolCalls(text) }) };
        });
        return conversationOf(example, turns).slice(example.prompt.length);
      },
    }),
  };
}

type SpokenTurn = Pick<Turn, 'text' | 'content' | 'toolCalls' | 'finishReason'>;
