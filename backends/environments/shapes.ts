import { present } from '../../core/present.ts';
import { readMessage, type WrittenMessage } from '../../core/rl/rollout/message-parts.ts';
import type { ChatMessage, Example, ToolSchema, Turn } from '../../core/rl/rollout/rollout.ts';
import { readToolCalls } from '../../engine/speech/speech.ts';
import { requireKnownOptions } from './known-options.ts';
import { conversationOf } from './score.ts';
import type { Dataset, Demonstration, Environment, Policy, RolloutPlace, RolloutRecord, Rubric } from './types.ts';
import { NotedReplies } from './noted-replies.ts';
import type { JsonValue } from '../../core/json-value.ts';
import type { RolloutNotes } from '../../core/rl/rollout/notes.ts';

/** Common shapes of environments. Most need only a dataset, a rubric and an answer to each turn. */

export interface SingleTurnOptions {
  readonly name: string;
  readonly dataset: Dataset;
  /** Held out: shares no example with `dataset`. */
  readonly evalDataset: Dataset;
  readonly rubric: Rubric;
  readonly demonstrate?: (example: Example, random: () => number) => string;
}

/** An environment with a single turn of the policy. */
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

/** A conversation so far. */
export interface Conversation<State> {
  readonly example: Example;
  /** The last result of `respond`; before the first turn, of `setup`. */
  readonly state: State;
  /** The turns so far, the newest last. */
  readonly turns: readonly Pick<Turn, 'text' | 'toolCalls' | 'heard'>[];
  /** The example's prompt, and all messages since. */
  readonly messages: readonly ChatMessage[];
}

/**
 * The environment's reply to the newest turn. Text is one user message; a message's content may be parts, pictures
 * among them.
 */
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
  /** Most turns of the policy; the last one gets no reply. */
  readonly maxTurns: number;
  /** Initial state of a rollout of this example. Never changed in place: `respond` returns the next. */
  readonly setup: (example: Example) => State;
  /**
   * Replies to the newest turn, or ends the rollout. Also called after the last turn, to update the state. In a
   * deterministic environment it must depend on its argument alone: it is called again with the same argument when a
   * rollout resumes after a crash, and when a stored rollout is scored.
   */
  readonly respond: (conversation: Conversation<State>) => Reply<State> | Promise<Reply<State>>;
  /** The assistant's next message, possibly imperfect, for supervised warm-up. */
  readonly demonstrate?: (conversation: Conversation<State>, random: () => number) => string;
  /**
   * False = `respond` may reply differently to equal inputs: unfinished rollouts then start over, and the rubric has no
   * state.
   */
  readonly isDeterministic?: boolean;
  readonly tools?: readonly ToolSchema[];
  /**
   * The state as JSON, and the state of it. With both, the reply to each turn is written down with the state after it,
   * and a rollout that resumes after a crash goes on from its last turn: `respond` is not called again for those before.
   */
  readonly snapshot?: (state: State) => JsonValue;
  readonly restore?: (snapshot: JsonValue, example: Example) => State;
}

/**
 * An environment that replies to each turn of the policy until it is complete, a turn is truncated, or `maxTurns` is
 * reached. Every rollout has a state of its own.
 */
export function multiTurn<State>(options: MultiTurnOptions<State>): Environment {
  requireKnownOptions<MultiTurnOptions<State>>('multiTurn(…)', options, {
    snapshot: true,
    restore: true,
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
  return conversing<State>(options);
}

interface ConversingOptions<State> extends Omit<MultiTurnOptions<State>, 'respond'> {
  /** As in {@link MultiTurnOptions}; `notes` of the rollout that is played, missing where a stored one is scored. */
  readonly respond: (
    conversation: Conversation<State>,
    notes: RolloutNotes | undefined,
  ) => Reply<State> | Promise<Reply<State>>;
}

/** {@link multiTurn}, with the notes of each rollout. */
export function conversing<State>(options: ConversingOptions<State>): Environment {
  const { name, dataset, evalDataset, maxTurns, isDeterministic = true, tools, setup, demonstrate } = options;
  if ((options.snapshot === undefined) !== (options.restore === undefined)) {
    throw new TypeError(
      `Environment "${name}" has ${options.snapshot ? 'snapshot' : 'restore'} alone: expected snapshot and restore together, so that a state which was written down can be read.`,
    );
  }
  if (!Number.isInteger(maxTurns) || maxTurns < 1) {
    throw new TypeError(`Environment "${name}": expected maxTurns to be a whole number from 1, received ${maxTurns}.`);
  }

  /** Runs the conversation with a source of turns. Turns that ended by length get no reply. */
  async function converse<T extends SpokenTurn>(
    example: Example,
    next: (conversation: Conversation<State>) => T | null | Promise<T | null>,
    notes?: RolloutNotes,
  ): Promise<{ turns: (T & { heard?: readonly ChatMessage[] })[]; state: State; outcome: RolloutRecord['outcome'] }> {
    const turns: (T & { heard?: readonly ChatMessage[] })[] = [];
    const replies = await NotedReplies.open(options, example, notes);
    let state = setup(example);
    let heard: readonly ChatMessage[] = [];
    for (;;) {
      const messages = [...conversationOf(example, turns), ...heard];
      const turn = await next({ example, state, turns, messages });
      if (turn === null) return { turns, state, outcome: 'ok' };
      turns.push(heard.length === 0 ? turn : { ...turn, heard });
      if (turn.finishReason === 'length') return { turns, state, outcome: 'truncated' };
      const now = { example, state, turns, messages: conversationOf(example, turns) };
      const reply = await replies.to(turn, turns.length, () => options.respond(now, notes));
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
    ...present({ tools }),
    ...(options.snapshot && { saysState: true }),
    async rollout(example: Example, policy: Policy, place?: RolloutPlace): Promise<RolloutRecord> {
      const { turns, outcome } = await converse(
        example,
        ({ messages }) => policy.sample(messages, tools && { tools }),
        place?.notes,
      );
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
          return { text, finishReason: 'stop' as const, ...present({ toolCalls: tools && readToolCalls(text) }) };
        });
        return conversationOf(example, turns).slice(example.prompt.length);
      },
    }),
  };
}

type SpokenTurn = Pick<Turn, 'text' | 'content' | 'toolCalls' | 'finishReason'>;
