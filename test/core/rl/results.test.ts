import assert from 'node:assert/strict';
import { test } from 'node:test';
import { addTallies, averageError, averageReward, tallyOf } from '../../../core/eval/tally.ts';
import { resultRow, resultsMetadata } from '../../../core/rl/rollout/results.ts';
import type { JsonValue } from '../../../config/run-spec.ts';
import type { Example, ScoredRollout, Turn } from '../../../core/rl/rollout/rollout.ts';

const example: Example = { id: 7, prompt: [{ role: 'user', content: 'ab' }], answer: 'ba', info: { level: 2 } };
const tools = [
  { type: 'function', function: { name: 'look', description: 'Looks.', parameters: { type: 'object' } } },
] as const;

function turn(text: string, more: Partial<Turn> = {}): Turn {
  const tokenIds = Array.from(text, (_, i) => i);
  const logprobs = tokenIds.map(() => -1);
  return { promptTokenIds: [1, 2, 3], tokenIds, logprobs, text, finishReason: 'stop', policyStep: 4, ...more };
}

function rollout(more: Partial<ScoredRollout> = {}): ScoredRollout {
  const known = { group: 3, index: 1, exampleId: 7, turns: [turn('ba')], outcome: 'ok', reward: 0.5 };
  return { ...known, metrics: { right: 1, length: 2 }, ...more } as ScoredRollout;
}

test('a rollout of an environment in TypeScript is a row as verifiers writes it', () => {
  const call = { name: 'look', arguments: '{}' };
  const answer = { role: 'tool', content: 'nothing', tool_call_id: 'call_0' } as const;
  const turns = [
    turn('let me look', { toolCalls: [call] }),
    turn('ba', { heard: [answer], promptTokenIds: [1, 2, 3, 4] }),
  ];
  const row = resultRow(rollout({ turns }), { example, tools, place: { step: 5, group: 3 } });
  const columns =
    'example_id prompt completion answer info reward error timing is_completed is_truncated stop_condition';
  assert.deepEqual(Object.keys(row).slice(0, 13), [...columns.split(' '), 'metrics', 'tool_defs']);
  assert.deepEqual(row['completion'], [
    { role: 'assistant', content: 'let me look', tool_calls: ['{"id":"call_0","name":"look","arguments":"{}"}'] },
    answer,
    { role: 'assistant', content: 'ba' },
  ]);
  assert.deepEqual([row['right'], row['length'], row['reward'], row['metrics']], [1, 2, 0.5, { right: 1, length: 2 }]);
  assert.deepEqual(row['token_usage'], {
    input_tokens: 7,
    output_tokens: 13,
    final_input_tokens: 0,
    final_output_tokens: 13,
  });
  assert.deepEqual(row['tool_defs'], [{ name: 'look', description: 'Looks.', parameters: { type: 'object' } }]);
  assert.deepEqual(row['ratchet'], { step: 5, group: 3, index: 1, outcome: 'ok' });
  assert.doesNotMatch(JSON.stringify(row), /logprobs|tokenIds/);
});

test('a row that verifiers wrote stays as it is, with the reward that was given later and without what only scoring needs', () => {
  const record = { example_id: 7, completion: [], reward: null, custom: 'kept', scoring_state: '{}', trajectory: [] };
  const row = resultRow(rollout(), { example, record, place: {} });
  assert.deepEqual([row['custom'], row['reward'], row['right']], ['kept', 0.5, 1]);
  assert.ok(!('scoring_state' in row) && !('trajectory' in row));
});

test('the timing of a row that was scored later has its scoring, and nothing of the time between', () => {
  const span = (start: number, end: number) => ({ start, end, duration: end - start });
  const spans = (duration: number) => ({ spans: [], duration });
  const rest = { start_time: 9, setup: span(10, 11), model: spans(4), env: spans(1) };
  const unscored = { ...rest, generation: span(10, 17), scoring: span(0, 0), total: 0, overhead: -6 };
  const timingOf = (timing: Record<string, JsonValue>, more: Partial<ScoredRollout> = {}) =>
    resultRow(rollout(more), { example, record: { example_id: 7, timing }, place: {} })['timing'];
  const scored = { ...unscored, scoring: span(100, 102), total: 9, overhead: 1 };
  assert.deepEqual(timingOf(unscored, { scoredS: [100, 102] }), scored);
  assert.deepEqual(timingOf(unscored), { ...unscored, total: 7, overhead: 1 });
  assert.deepEqual(timingOf(scored, { scoredS: [200, 300] }), scored, 'what verifiers measured stays');
});

test('what failed has no reward, and its error in the columns that viewers read', () => {
  const failed = rollout({ outcome: 'infra_failure', reward: null, metrics: {}, error: 'Error: no disk\n    at play' });
  const row = resultRow(failed, { example, place: {} });
  assert.equal(row['reward'], null);
  assert.deepEqual([row['is_completed'], row['stop_condition']], [false, 'has_error']);
  assert.equal((row['error'] as { message: string }).message, 'Error: no disk');
  assert.match(row['long_error_chain'] as string, /at play/);
});

test('where the policy itself failed there is a reward and an error, and avg_error counts it', () => {
  const error = { error: 'EmptyModelResponseError', message: 'nothing' };
  const record = { example_id: 7, completion: [], reward: null, error, error_chain: 'EmptyModelResponseError()' };
  const failed = rollout({ outcome: 'policy_failure', reward: 0.25 });
  const row = resultRow(failed, { example, record, place: {} });
  assert.deepEqual([row['reward'], row['error'], row['is_completed']], [0.25, error, true]);
  assert.deepEqual(resultRow(rollout(), { example, record, place: {} })['error'], null);
  const about = { environment: 'words', args: {}, model: 'run', baseUrl: '', rolloutsPerExample: 2, sampling: {} };
  assert.equal(resultsMetadata([[failed, rollout()]], about)['avg_error'], 0.5);
  const tally = tallyOf([[row, resultRow(rollout(), { example, place: {} })]], 2);
  assert.deepEqual([averageError(tally), tally.failed, averageReward(tally)], [0.5, 0, 0.375]);
  assert.equal(averageError(addTallies(tally, tally)), 0.5);
});

test('metadata says how often the right answer was among the first k, as verifiers estimates it', () => {
  const groups = [
    [1, 0, 0, 0],
    [1, 1, 0, null],
    [1, 1, 1], // not whole: not counted
  ].map((rewards) =>
    rewards.map((reward) => rollout(reward === null ? { reward, outcome: 'timeout', metrics: {} } : { reward })),
  );
  const about = { environment: 'words', args: {}, model: 'run', baseUrl: '', rolloutsPerExample: 4, sampling: {} };
  const metadata = resultsMetadata(groups, about);
  // 1 − C(n−c, k)/C(n, k) and C(c, k)/C(n, k) for c = 1 and 2 of n = 4
  assert.deepEqual(metadata['pass_at_k'], { '1': (0.25 + 0.5) / 2, '2': (0.5 + 5 / 6) / 2, '4': 1 });
  assert.deepEqual(metadata['pass_all_k'], { '1': 0.375, '2': 1 / 12, '4': 0 });
  assert.equal(metadata['avg_error'], 1 / 11);
  assert.equal(metadata['avg_reward'], 6 / 10);
  assert.equal(metadata['num_examples'], 3);
});
