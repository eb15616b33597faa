import assert from 'node:assert/strict';
import { test } from 'node:test';
import { chunksText } from '../../workflows/control/lines.ts';

const at = (second: number): number => Date.UTC(2026, 10, 27, 5, 0, second);

test('the Temporal UI tells what is sampled by environment, with the oldest', () => {
  const chunks = [
    { environment: 'slow', groups: 4, policyStep: 3, since: at(9) },
    { environment: 'quick', groups: 2, policyStep: 5, since: at(20) },
    { environment: 'slow', groups: 8, policyStep: 2, since: at(4) },
  ];
  assert.equal(
    chunksText('words', chunks),
    [
      'Rollouts of run words: 3 chunks in play',
      '',
      '- slow: 2 chunks of 12 groups, the oldest since 2026-11-27T05:00:04.000Z from v2',
      '- quick: 1 chunk of 2 groups, the oldest since 2026-11-27T05:00:20.000Z from v5',
    ].join('\n'),
  );
});

test('a run with one environment has one line, and one that plays nothing none', () => {
  const [, , ...lines] = chunksText('words', [{ groups: 4, policyStep: 3, since: at(9) }]).split('\n');
  assert.deepEqual(lines, ['- 1 chunk of 4 groups, the oldest since 2026-11-27T05:00:09.000Z from v3']);
  assert.equal(chunksText('words', []), 'Rollouts of run words: 0 chunks in play');
});
