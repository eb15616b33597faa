import { randomUUID } from 'node:crypto';
import type { ChatMessage, Example, Rollout, ScoredRollout, Turn } from '../../core/rl/rollout/rollout.ts';
import { readSpeech } from '../../engine/speech/speech.ts';
import { scoreGroup } from './score-group.ts';
import type { Environment, Policy, RolloutPlace } from './types.ts';

/** A policy with scripted answers, without a model: for inspecting an environment, and for its tests. */
export function scriptedPolicy(say: (messages: readonly ChatMessage[], turn: number) => string): Policy {
  let asked = 0;
  return {
    sample(messages, { tools, call } = {}): Promise<Turn> {
      const id = `scripted-${asked}`;
      const text = say(messages, asked++);
      const { content, reasoning, toolCalls } = readSpeech(text, { tools });
      return Promise.resolve({
        promptTokenIds: [],
        tokenIds: [],
        logprobs: [],
        text,
        ...(content === text ? {} : { content }),
        ...(reasoning === '' ? {} : { reasoning }),
        ...(toolCalls.length === 0 ? {} : { toolCalls }),
        finishReason: 'stop',
        ...(call && { call: { id, after: call.after }, heard: call.heard }),
        policyStep: 0,
      });
    },
  };
}

/** Generates and scores one rollout of an example, like a run but without a model or a store. */
export async function playAndScore(
  environment: Environment,
  example: Example,
  policy: Policy,
  dataset: RolloutPlace['dataset'] = 'dataset',
): Promise<ScoredRollout> {
  const place = { group: randomUUID(), index: 0, size: 1, dataset, signal: new AbortController().signal };
  const record = await environment.rollout(example, policy, place);
  const rollout: Rollout = { group: 0, index: 0, exampleId: example.id, ...record };
  const [scored] = await scoreGroup(environment, example, [rollout], { dataset });
  return scored!;
}

/** The policy that follows the environment's own demonstration; null without one. */
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
