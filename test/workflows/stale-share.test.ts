import assert from 'node:assert/strict';
import { test } from 'node:test';
import { StaleShare } from '../../workflows/step/stale-share.ts';

const said = (share: StaleShare, batches: number, stale: number): (string | null)[] =>
  Array.from({ length: batches }, () => share.note({ stale, trained: 16 }, 4));

test('a run says that groups grow too old once it is known, and again when as many batches have gone by', () => {
  const lines = said(new StaleShare(), 40, 2);
  const at = lines.flatMap((line, i) => (line === null ? [] : [i + 1]));
  assert.deepEqual(at, [8, 25]);
  assert.match(lines[7]!, /^16 of 144 groups \(11%\) .* max_off_policy_steps = 4 steps/);
});

test('a few that grow too old are not worth a word', () => {
  const share = new StaleShare();
  assert.ok([...said(share, 15, 0), ...said(share, 1, 8), ...said(share, 20, 0)].every((line) => line === null));
});
