/** Two evaluations held against each other, example by example. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { compareEvaluations, type ComparedRow } from '../../../core/eval/comparison.ts';
import { differentSettings, readMetadata } from '../../../core/eval/result-metadata.ts';

function row(exampleId: string, reward: number | null, prompt = exampleId): ComparedRow {
  return { exampleId, reward, promptDigest: prompt, promptStart: `asks ${prompt}` };
}

describe('a comparison', () => {
  test('pairs examples, however many rollouts each had, and tells the greatest gain first', () => {
    const { examples, means, better, same, worse, difference } = compareEvaluations(
      [row('0', 0), row('0', 1), row('1', 1), row('2', 0.5)],
      [row('2', 0.5), row('1', 0), row('0', 1), row('0', 1), row('0', 1)],
    );
    assert.deepEqual(
      examples.map(({ exampleId, difference: by }) => [exampleId, by]),
      [
        ['0', 0.5],
        ['2', 0],
        ['1', -1],
      ],
    );
    assert.deepEqual(examples[0]!.rewards, [
      [0, 1],
      [1, 1, 1],
    ]);
    assert.deepEqual([better, same, worse], [1, 1, 1]);
    assert.ok(Math.abs(means![1] - means![0] - difference!.mean) < 1e-12);
    assert.ok(difference!.low <= difference!.mean && difference!.mean <= difference!.high);
  });

  test('leaves out what cannot be compared, and says it', () => {
    const { examples, leftOut } = compareEvaluations(
      [row('0', 1), row('1', 1), row('2', null), row('3', 1), row('5', 1)],
      [row('0', 0), row('1', 1, 'another'), row('2', 1), row('4', 1), row('6', 1), row('7', 1)],
    );
    assert.deepEqual(
      examples.map(({ exampleId }) => exampleId),
      ['0'],
    );
    assert.deepEqual(leftOut, { onlyInA: 2, onlyInB: 3, otherPrompt: ['1'], withoutReward: ['2'] });
  });

  test('is the same whatever order the rows were written in, and another for another seed', () => {
    const a = Array.from({ length: 30 }, (_, i) => row(String(i), (i * 7) % 5));
    const b = Array.from({ length: 30 }, (_, i) => row(String(i), Math.sqrt((i * 11) % 7)));
    const forward = compareEvaluations(a, b);
    assert.deepEqual(compareEvaluations(a.toReversed(), b.toReversed()), forward);
    assert.notDeepEqual(compareEvaluations(a, b, { seed: 1 }).difference, forward.difference);
  });

  test('without a common example has no difference', () => {
    const { difference, means } = compareEvaluations([row('0', 1)], [row('1', 1)]);
    assert.deepEqual([difference, means], [null, null]);
  });
});

test('settings that differ are told by name; what nobody set is not there', () => {
  const a = readMetadata({ model: 'x', sampling_args: { temperature: 1, max_tokens: null }, env_args: { n: [1] } })!;
  const b = readMetadata({ model: 'x', sampling_args: { temperature: 0 }, env_args: { n: [1] }, shuffle: true })!;
  assert.deepEqual(differentSettings([a, b]), [
    { name: 'sampling_args.temperature', values: [1, 0] },
    { name: 'shuffle', values: [null, true] },
  ]);
  assert.equal(readMetadata([]), null);
});
