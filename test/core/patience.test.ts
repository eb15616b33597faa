import assert from 'node:assert/strict';
import { test } from 'node:test';
import { nextWaitMs } from '../../core/patience.ts';

/** Askings until an outage is over, and how long after that the last one is. */
function outage(lengthMs: number): { asked: number; lateMs: number } {
  let [asked, waitMs, waitedMs] = [0, 0, 0];
  while (waitedMs < lengthMs) {
    waitMs = nextWaitMs({ firstMs: 200, waitMs, waitedMs });
    waitedMs += waitMs;
    asked += 1;
  }
  return { asked, lateMs: waitedMs - lengthMs };
}

test('an outage of a day is asked after a few hundred times, and its end is noticed soon enough', () => {
  const hour = 3_600_000;
  assert(outage(24 * hour).asked < 250, `asked ${outage(24 * hour).asked} times`);
  for (const length of [1_000, 20_000, 60_000, 600_000, hour, 7 * hour, 24 * hour]) {
    assert(outage(length).lateMs <= Math.max(length, 0) && outage(length).lateMs <= 600_000);
    if (length >= 600_000) assert(outage(length).lateMs <= length / 20 + 1);
  }
});
