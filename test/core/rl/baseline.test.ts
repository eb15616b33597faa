import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { judgeBaseline, measureBaseline, type BaselineSettings } from '../../../core/rl/advice/baseline.ts';
import type { ScoredGroup, ScoredRollout } from '../../../core/rl/rollout/rollout.ts';

const settings: BaselineSettings = { temperature: 1, maxTokens: 16, rolloutsPerExample: 8, batchSize: 64 };

/** Groups with these rewards; null = lost to infrastructure. Every answer is another one unless `says` says otherwise. */
function groups(
  rewards: readonly (readonly (number | null)[])[],
  says = (group: number, index: number) => `${group} ${index}`,
): ScoredGroup[] {
  return rewards.map((values, group) => ({
    ordinal: group + 1,
    environment: 'words',
    exampleId: group,
    epoch: 0,
    policyStep: 0,
    rollouts: values.map((reward, index) => rollout(group, index, reward, says(group, index))),
  }));
}

function rollout(group: number, index: number, reward: number | null, text: string): ScoredRollout {
  const turn = {
    promptTokenIds: [1],
    tokenIds: [2, 3],
    logprobs: [0, 0],
    text,
    finishReason: 'stop' as const,
    policyStep: 0,
  };
  const common = { group: group + 1, index, exampleId: group, turns: [turn], metrics: {} };
  return reward === null ? { ...common, outcome: 'timeout', reward } : { ...common, outcome: 'ok', reward };
}

function judge(given: readonly ScoredGroup[], changed: Partial<BaselineSettings> = {}) {
  return judgeBaseline(measureBaseline(given), { ...settings, ...changed });
}

const repeated = <T>(value: T, count: number): T[] => Array.from({ length: count }, () => value);

describe('the rules of thumb before training', () => {
  test('an environment in the middle, with rewards that differ, is told nothing', () => {
    assert.deepEqual(judge(groups(repeated([0.2, 0.8, 0.4, 0.5], 8))), []);
  });

  test('no reward above 0 after ten attempts is too hard and stops; after nine it is not known yet', () => {
    const [first] = judge(groups(repeated([0, 0], 5)));
    assert.deepEqual([first?.level, first?.symptom], ['stop', 'too hard']);
    assert.match(first!.evidence, /^mean reward 0 % over 10 rollouts/);
    assert.ok(!judge(groups(repeated([0, 0, 0], 3))).some(({ symptom }) => symptom === 'too hard'));
  });

  test('80 % is too easy, and just below it is not; rewards beyond 0 to 1 are not judged by it', () => {
    const of = (...rewards: number[]) => judge(groups(repeated(rewards, 8))).map(({ symptom }) => symptom);
    assert.deepEqual(of(0.75, 0.9), ['too easy']);
    assert.deepEqual(of(0.69, 0.9), []);
    assert.deepEqual(of(2, 5), ['settings']);
  });

  test('groups whose rewards are all equal carry little signal', () => {
    const found = judge(groups([...repeated([0.5, 0.5], 8), [0.4, 0.6], [0.4, 0.6]]));
    assert.deepEqual(
      found.map(({ symptom }) => symptom),
      ['little signal'],
    );
    assert.match(found[0]!.evidence, /^rewards differ in 20 % of 10 groups/);
  });

  test('rewards that are only 0 and 1, answers that are all alike, and low temperature are named', () => {
    const found = judge(
      groups(repeated([0, 1], 8), () => 'the same'),
      { temperature: 0.3 },
    );
    const evidence = found.map((one) => one.evidence).join('\n');
    assert.match(evidence, /every reward is 0 or 1 \(16 rollouts\)/);
    assert.match(evidence, /50 % of the answers|temperature = 0\.3/);
    assert.ok(found.some(({ change }) => change.join().includes('temperature from 0.8 to 1')));
  });

  test('answers that are cut off and rollouts that fail are told with their share', () => {
    const cut = groups(repeated([0.2, 0.8], 8)).map((group) => ({
      ...group,
      rollouts: group.rollouts.map((one) => (one.reward === null ? one : { ...one, outcome: 'truncated' as const })),
    }));
    assert.match(judge(cut)[0]!.evidence, /^100 % of the answers are cut off at max_tokens = 16/);
    assert.match(judge(groups(repeated([0.2, 0.8, null, 0.5], 8)))[0]!.evidence, /^25 % of the rollouts failed/);
    const [all] = judge(groups(repeated([null, null], 8)));
    assert.deepEqual([all?.level, all?.symptom], ['stop', 'lost work']);
  });

  test('each environment is measured by itself', () => {
    const other = groups(repeated([0, 0], 8)).map((group) => ({ ...group, environment: 'sums' }));
    const found = judge([...groups(repeated([0.2, 0.8], 8)), ...other]);
    assert.deepEqual([...new Set(found.map(({ about }) => about))], ['sums']);
  });

  test('small groups and batches are a note', () => {
    const found = judge(groups(repeated([0.2, 0.8], 8)), { rolloutsPerExample: 2, batchSize: 8 });
    assert.deepEqual(
      found.map(({ level, evidence }) => [level, evidence]),
      [
        ['note', 'rollouts_per_example = 2; 8 or more is usual'],
        ['note', 'batch_size = 8; 64 or more is usual'],
      ],
    );
  });
});
