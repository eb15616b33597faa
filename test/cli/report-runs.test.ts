import assert from 'node:assert/strict';
import { test } from 'node:test';
import { changes, firstLines, type RunStanding } from '../../cli/temporal/report-runs.ts';

const at = (state: RunStanding['state'], step: number | null = null, why: string | null = null): RunStanding => ({
  state,
  step,
  why,
});

test('whoever holds the processes is told which runs continue, and then what becomes of each, failures included', () => {
  const before = new Map([
    ['a', at('running', 3)],
    ['b', at('paused', 7, 'no-signal')],
  ]);
  assert.deepEqual(firstLines(before), [
    'a continues after step 3',
    'b is paused after step 7: no-signal   (npx ratchet-rl status b)',
  ]);
  const now = new Map([
    ['a', at('failed', 4, 'another\narchitecture')],
    ['b', at('running', 7)],
    ['c', at('running')],
  ]);
  assert.deepEqual(changes(before, now), [
    'a failed after step 4: another⏎architecture',
    'b continues after step 7',
    'c begins',
  ]);
  assert.deepEqual(changes(now, new Map([...now, ['c', at('running', 1)]])), [], 'a step is no news');
});
