import type { ChatMessage, Example, Rollout, ScoredRollout, Turn } from '../../core/rl/rollout.ts';
import { readToolCalls } from '../../engine/server/tool-calls.ts';
import { scoreRollout } from './score.ts';
import type { Environment, Policy } from './types.ts';

/** A policy that says what it is told to, without a model: for looking at an environment, and for its tests. */
export function scriptedPolicy(say: (messages: readonly ChatMessage[], turn: number) => string): Policy {
  let asked = 0;
  return {
    sample(messages, { tools } = {}): Promise<Turn> {
      const text = say(messages, asked++);
      const toolCalls = tools === undefined ? [] : readToolCalls(text);
      return Promise.resolve({
        promptTokenIds: [],
        tokenIds: [],
        logprobs: [],
        text,
        ...(toolCalls.length === 0 ? {} : { toolCalls }),
        finishReason: 'stop',
        policyStep: 0,
      });
    },
  };
}

/** Plays one example through with a policy and scores it: what a run does with it, without a model or a store. */
export async function playAndScore(environment: Environment, example: Example, policy: Policy): Promise<ScoredRollout> {
  const record = await environment.rollout(example, policy);
  const rollout: Rollout = { group: 0, index: 0, exampleId: example.id, ...record };
  return scoreRollout(environment, example, rollout);
}

/** The policy that says what the environment itself demonstrates; null where it demonstrates nothing. */
export async function demonstratingPolicy(
  environment: Environment,
  example: Example,
  random: () => number,
): Promise<Policy | null> {
  const demonstration = await environment.demonstrate?.(example, random);
  if (demonstration === undefined) return null;
  const said =
    typeof demonstration === 'string'
      ? [demonstration]
      : demonstration.filter(({ role }) => role === 'assistant').map(({ content }) => content);
  return scriptedPolicy((_, turn) => said[turn] ?? '');
}
