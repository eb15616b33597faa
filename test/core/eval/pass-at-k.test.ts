import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import fc from 'fast-check';
import { passAllK, passAtK, passCounts, passFigures } from '../../../core/eval/pass-at-k.ts';

/** Made with verifiers 0.3.1 (`PassAtKMetric`), threshold 0.5. */
const golden = JSON.parse(readFileSync(new URL('../../data/evals/passk.json', import.meta.url), 'utf8')) as {
  readonly rewards: readonly number[];
  readonly out: Readonly<Record<string, number>>;
}[];

for (const { rewards, out } of golden) {
  test(`pass@k and pass^k of the rewards ${rewards.join(' ')} are those of verifiers`, () => {
    const right = rewards.filter((reward) => reward >= 0.5).length;
    const made = passCounts(rewards.length).flatMap((k) => [
      [`pass@${k}`, passAtK(rewards.length, right, k)],
      [`pass^${k}`, passAllK(rewards.length, right, k)],
    ]);
    assert.deepEqual(Object.keys(Object.fromEntries(made)).toSorted(), Object.keys(out).toSorted());
    for (const [name, value] of made as [string, number][]) assert.ok(Math.abs(value - out[name]!) < 1e-12, name);
  });
}

test('a rollout of each example has no pass@k, and no whole example has none either', () => {
  assert.deepEqual(passFigures(1, [3, 4]), { atK: {}, allK: {} });
  assert.deepEqual(passFigures(4, [0, 0, 0, 0, 0]), { atK: {}, allK: {} });
});

test('pass@1 is the share of right rollouts, pass@k grows with k, pass^k falls', () => {
  fc.assert(
    fc.property(fc.integer({ min: 2, max: 64 }), fc.nat(64), (n, given) => {
      const right = Math.min(n, given);
      const at = passCounts(n).map((k) => passAtK(n, right, k));
      const all = passCounts(n).map((k) => passAllK(n, right, k));
      assert.ok(Math.abs(at[0]! - right / n) < 1e-12 && Math.abs(all[0]! - right / n) < 1e-12);
      for (let i = 1; i < at.length; i++) assert.ok(at[i]! >= at[i - 1]! - 1e-12 && all[i]! <= all[i - 1]! + 1e-12);
    }),
  );
});

test('of thousands of rollouts it is a number as well', () => {
  assert.equal(passAtK(2048, 1000, 512), 1);
  assert.ok(Math.abs(passAtK(2048, 1, 512) - 0.25) < 1e-12);
  assert.ok(Math.abs(passAllK(2048, 2047, 512) - 0.75) < 1e-12);
  assert.ok(passCounts(4096).every((k) => passAtK(4096, 2000, k) <= 1 && passAllK(4096, 2000, k) >= 0));
});
