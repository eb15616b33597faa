import assert from 'node:assert/strict';
import { test } from 'node:test';
import { describeSolved, solvedShare } from '../../../core/rl/advice/left-to-learn.ts';

const solved = (share: number) => ({ 'train/agg/all/solved_all': share });

test('a run whose last groups are mostly all right is told that more steps teach little; others are not', () => {
  const share = solvedShare([
    ...Array.from({ length: 90 }, () => solved(0)),
    ...Array.from({ length: 10 }, () => solved(0.68)),
  ]);
  assert.equal(share?.toFixed(2), '0.68');
  assert.equal(describeSolved(0.68), 'more steps would teach little: 68 % of the last groups were all right');
  assert.equal(solvedShare(Array.from({ length: 20 }, () => solved(0.3))), null);
  assert.equal(solvedShare([]), null);
});
