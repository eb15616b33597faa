import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { Pace } from '../../play/pace.ts';
import { type LastCall, type PlayOptions, playRollout } from '../../play/play-rollout.ts';
import { limitReached, withinLimits } from '../../play/rollout-limits.ts';
import type { PlayedPolicy } from '../../play/policy/sample-policy.ts';
import { createEnvironments } from '../../backends/environments/index.ts';
import { multiTurn } from '../../backends/environments/shapes.ts';
import type { Environment } from '../../backends/environments/types.ts';
import type { RolloutLimits } from '../../config/settings/environments.ts';
import type { Rollout, Turn } from '../../core/rl/rollout/rollout.ts';

const none = {
  maxTurns: null,
  maxInputTokens: null,
  maxOutputTokens: null,
  maxTotalTokens: null,
  timeoutS: null,
  onTimeout: null,
  maxRetries: null,
};

const talkativeTurn: Omit<Turn, 'promptTokenIds'> = {
  tokenIds: [8, 9],
  logprobs: [0, 0],
  text: 'go on',
  finishReason: 'stop',
  policyStep: 0,
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
      const turn: Turn = { ...talkativeTurn, promptTokenIds };
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

async function play(
  environment: Environment,
  limits: Partial<RolloutLimits>,
  more: Partial<Pick<PlayOptions, 'lastCall' | 'onTimeout' | 'openPolicy' | 'signal'>> = {},
): Promise<Rollout & { opened: number }> {
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
    ...more,
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

  test('calls of a program count against the turn that they follow, and those under way count as turns', async () => {
    const call = (id: string, after: string | null, promptTokenIds: number[]): Turn => ({
      ...talkativeTurn,
      promptTokenIds,
      call: { id, after },
    });
    const tree = [call('a', null, [1, 2, 3]), call('b', null, [5]), call('c', 'a', [1, 2, 3, 8, 9, 4])];
    assert.match(limitReached(tree, { maxInputTokens: 5 }) ?? '', /it is at 5/);
    assert.equal(limitReached(tree, { maxInputTokens: 6 }), null);
    const inner = talkative();
    const slow = { ...inner, sample: () => delay(10).then(() => inner.sample([])) };
    const policy = withinLimits(slow, { limits: { ...none, maxTurns: 2 } });
    const asked = await Promise.allSettled([policy.sample([]), policy.sample([]), policy.sample([])]);
    assert.deepEqual(
      asked.map(({ status }) => status),
      ['fulfilled', 'fulfilled', 'rejected'],
    );
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

  test('one that is to be truncated then keeps the turns that it had finished, with what it had heard before each', async () => {
    const { outcome, isTimedOut, error, turns, opened } = await play(
      endless(() => delay(60)),
      { timeoutS: 0.15, onTimeout: 'truncate' },
    );
    assert.deepEqual([outcome, isTimedOut, error, opened], ['truncated', true, undefined, 1]);
    assert(turns.length > 0 && turns.length < 5);
    const more = [{ role: 'user', content: 'More.' }];
    assert.deepEqual(
      turns.map(({ heard }) => heard),
      turns.map((_, i) => (i === 0 ? undefined : more)),
    );
  });

  test('one that is cut off in its only turn has none, and its server is not waited for', async () => {
    const silent = (_: Environment, signal: AbortSignal): PlayedPolicy => {
      const turns: Turn[] = [];
      const sample = (): Promise<Turn> => delay(60_000, undefined, { signal }).then(() => assert.fail('it went on'));
      return { turns, failure: undefined, sample };
    };
    const limits = { timeoutS: 0.1, onTimeout: 'truncate' } as const;
    const { outcome, isTimedOut, turns } = await play(endless(), limits, { openPolicy: silent });
    assert.deepEqual([outcome, isTimedOut, turns], ['truncated', true, []]);
    const dropped = await play(endless(), { timeoutS: 0.1 }, { openPolicy: silent });
    assert.deepEqual([dropped.outcome, dropped.isTimedOut], ['timeout', undefined]);
  });

  test('an environment’s own word goes before the run’s', async () => {
    const slow = endless(() => delay(60));
    const limits = { timeoutS: 0.1, onTimeout: 'drop' } as const;
    assert.equal((await play(slow, limits)).outcome, 'timeout');
    assert.equal((await play(slow, { timeoutS: 0.1 }, { onTimeout: 'truncate' })).outcome, 'truncated');
  });

  test('the last call truncates what was begun in time, unless nobody could finish anything', async () => {
    const slow = endless(() => delay(60));
    const over = new Error('the attempt is over');
    const lastCall = (of: { begunByMs?: number; isDue?: boolean }): LastCall => {
      const atMs = performance.now() + 150;
      return { atMs, begunByMs: of.begunByMs ?? atMs, says: 'too late', isDue: () => of.isDue ?? true };
    };
    const end = (): AbortSignal => {
      const ends = new AbortController();
      setTimeout(() => ends.abort(over), 300).unref();
      return ends.signal;
    };
    const cut = await play(slow, {}, { onTimeout: 'truncate', lastCall: lastCall({}), signal: end() });
    assert.deepEqual([cut.outcome, cut.isTimedOut], ['truncated', true]);
    for (const not of [{ begunByMs: 0 }, { isDue: false }]) {
      const playing = play(slow, {}, { onTimeout: 'truncate', lastCall: lastCall(not), signal: end() });
      await assert.rejects(playing, over);
    }
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
