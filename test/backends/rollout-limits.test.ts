import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { Pace } from '../../backends/rollouts/pace.ts';
import { playRollout } from '../../backends/rollouts/play-rollout.ts';
import { limitReached } from '../../backends/rollouts/rollout-limits.ts';
import type { PlayedPolicy } from '../../backends/rollouts/sample-policy.ts';
import { createEnvironments } from '../../backends/environments/index.ts';
import { multiTurn } from '../../backends/environments/shapes.ts';
import type { Environment } from '../../backends/environments/types.ts';
import type { RolloutLimits } from '../../config/settings/environments.ts';
import type { Rollout, Turn } from '../../core/rl/rollout.ts';

const none = {
  maxTurns: null,
  maxInputTokens: null,
  maxOutputTokens: null,
  maxTotalTokens: null,
  timeoutS: null,
  maxRetries: null,
};

/** Every turn is fed 3 more tokens and says 2. */
function talkative(): PlayedPolicy {
  const turns: Turn[] = [];
  return {
    turns,
    failure: undefined,
    sample() {
      const before = turns.at(-1);
      const promptTokenIds = [...(before?.promptTokenIds ?? []), ...(before?.tokenIds ?? []), 1, 2, 3];
      const turn: Turn = {
        promptTokenIds,
        tokenIds: [8, 9],
        logprobs: [0, 0],
        text: 'go on',
        finishReason: 'stop',
        policyStep: 0,
      };
      turns.push(turn);
      return Promise.resolve(turn);
    },
  };
}

const example = { id: 0, prompt: [{ role: 'user' as const, content: 'Begin.' }], answer: '' };
const dataset = { length: 1, at: () => example };

function endless(respond: () => Promise<void> = () => Promise.resolve()): Environment {
  return multiTurn({
    name: 'endless',
    dataset,
    evalDataset: dataset,
    rubric: { functions: [] },
    maxTurns: 100,
    setup: () => null,
    respond: async () => {
      await respond();
      return { state: null, say: 'More.' };
    },
  });
}

async function play(environment: Environment, limits: Partial<RolloutLimits>): Promise<Rollout & { opened: number }> {
  let opened = 0;
  const rollout = await playRollout({
    environments: createEnvironments(() => {
      opened += 1;
      return Promise.resolve(environment);
    }),
    entry: { id: 'endless', args: {}, limits: { ...none, ...limits } },
    dataset: 'dataset',
    place: { group: 0, index: 0, exampleId: 0 },
    together: { group: 'g', size: 1 },
    openPolicy: talkative,
    signal: new AbortController().signal,
  });
  return { ...rollout, opened };
}

describe('limits that a config sets on the rollouts of an environment', () => {
  test('after the last turn that is allowed a rollout ends as truncated, with what it has', async () => {
    const { outcome, turns, error } = await play(endless(), { maxTurns: 3 });
    assert.deepEqual([outcome, turns.length, error], ['truncated', 3, undefined]);
  });

  test('tokens count once, however many prompts repeat them, and the turn that reaches a limit is whole', async () => {
    assert.equal((await play(endless(), { maxOutputTokens: 5 })).turns.length, 3);
    assert.equal((await play(endless(), { maxInputTokens: 6 })).turns.length, 2);
    assert.equal((await play(endless(), { maxTotalTokens: 11 })).turns.length, 3);
  });

  test('a prompt that begins anew is fed in anew', async () => {
    const policy = talkative();
    await policy.sample([]);
    const turn = await policy.sample([]);
    const anew = [policy.turns[0]!, { ...turn, promptTokenIds: [1, 7, 7, 7] }];
    assert.equal(limitReached(anew, { maxInputTokens: 7 }), null, '3, and 3 behind the 1 they share');
    assert.match(limitReached(anew, { maxInputTokens: 6 }) ?? '', /max_input_tokens = 6: it is at 6/);
  });

  test('one that takes longer than its timeout ends as timeout, without a reward, and is not played again', async () => {
    const { outcome, error, turns, opened } = await play(
      endless(() => delay(60)),
      { timeoutS: 0.15 },
    );
    assert.deepEqual([outcome, opened], ['timeout', 1]);
    assert.match(error ?? '', /^Not finished after 0\.15 s, the timeout of its \[\[env\]\]/);
    assert(turns.length > 0 && turns.length < 5, 'what it had is kept');
  });

  test('a rollout that its environment spoils is played as often as max_retries says', async () => {
    const spoiled = endless(() => Promise.reject(new Error('no disk left')));
    const never = await play(spoiled, { maxRetries: 0 });
    assert.deepEqual([never.outcome, never.opened], ['infra_failure', 1]);
    assert.equal((await play(spoiled, { maxRetries: 4 })).opened, 5);
    assert.equal((await play(spoiled, {})).opened, 3);
  });
});

describe('a pace', () => {
  test('leaves so long between two, and none where none is asked for', async () => {
    const { signal } = new AbortController();
    const began = performance.now();
    const pace = new Pace(40);
    await Promise.all([pace.next(signal), pace.next(signal), pace.next(signal)]);
    assert(performance.now() - began >= 78);
    await new Pace(0).next(signal);
  });

  test('ends with who waits', async () => {
    const over = new AbortController();
    const pace = new Pace(60_000);
    await pace.next(over.signal);
    const waiting = pace.next(over.signal);
    over.abort(new Error('given up'));
    await assert.rejects(waiting!, /given up/);
  });
});
