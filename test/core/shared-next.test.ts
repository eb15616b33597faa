import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sharedNext } from '../../core/shared-next.ts';

test('callers that come while a look is under way share the next one, and each sees what was so after it asked', async () => {
  let state = 0;
  let looks = 0;
  const waiting: (() => void)[] = [];
  const look = sharedNext(async () => {
    looks += 1;
    const seen = state;
    await new Promise<void>((resolve) => waiting.push(resolve));
    return seen;
  });
  const first = look();
  while (waiting.length < 1) await Promise.resolve();
  state = 1;
  const others = Array.from({ length: 100 }, () => look());
  state = 2;
  waiting[0]!();
  assert.equal(await first, 0);
  while (waiting.length < 2) await Promise.resolve();
  waiting[1]!();
  assert.deepEqual(new Set(await Promise.all(others)), new Set([2]));
  assert.equal(looks, 2);
});

test('a look that fails fails for those who shared it, and not for those who come later', async () => {
  let fails = true;
  const look = sharedNext(() => (fails ? Promise.reject(new Error('away')) : Promise.resolve('here')));
  await Promise.all([assert.rejects(look(), /away/), assert.rejects(look(), /away/)]);
  fails = false;
  assert.equal(await look(), 'here');
});
