import assert from 'node:assert/strict';
import { test } from 'node:test';
import { hasSearchAttributes } from '../../workers/temporal/has-search-attributes.ts';

const failing = (code: number) => async () => {
  // Thrown like the client's: its own error around the call's.
  throw new Error('Failed to count workflows', { cause: Object.assign(new Error('refused'), { code }) });
};
const all = { RatchetRun: 2, RatchetStep: 3, RatchetReward: 4 };

test('without the right to call the operators, a namespace is asked by a query; a refusal means the memo, not a run that never opens', async () => {
  const [invalid, denied, unimplemented, unauthenticated, unavailable] = [3, 7, 12, 16, 14];
  const answers = async () => ({ count: 0 });
  assert.equal(await hasSearchAttributes({ list: async () => all, count: failing(unavailable) }), true);
  assert.equal(await hasSearchAttributes({ list: async () => ({ RatchetRun: 2 }), count: answers }), false);
  for (const refusal of [denied, unimplemented, unauthenticated]) {
    assert.equal(await hasSearchAttributes({ list: failing(refusal), count: answers }), true);
    assert.equal(await hasSearchAttributes({ list: failing(refusal), count: failing(invalid) }), false);
    assert.equal(await hasSearchAttributes({ list: failing(refusal), count: failing(denied) }), false);
  }
  // Weather is waited for.
  await assert.rejects(hasSearchAttributes({ list: failing(unavailable), count: answers }), /Failed/);
  await assert.rejects(hasSearchAttributes({ list: failing(denied), count: failing(unavailable) }), /Failed/);
});
