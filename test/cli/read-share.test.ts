import assert from 'node:assert/strict';
import { test } from 'node:test';
import { readShare } from '../../cli/typed/read-share.ts';

test('a share above 0 and up to 1 is read, anything else is refused by its option', () => {
  assert.deepEqual(
    ['0.9', '1', '.5', ' 0.25 '].map((text) => readShare('--target-cpu', text)),
    [0.9, 1, 0.5, 0.25],
  );
  for (const text of ['', '0', '-0.5', '1.5', '90', '90%', 'most'])
    assert.throws(() => readShare('--target-cpu', text), /--target-cpu: expected a share above 0 and up to 1, got "/);
});
