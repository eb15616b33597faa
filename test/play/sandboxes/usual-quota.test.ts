import assert from 'node:assert/strict';
import { test } from 'node:test';
import { usualQuota } from '../../../play/sandboxes/usual-quota.ts';

test('a machine has as many sandboxes as its cores or its memory bear, and at least one', () => {
  const machine = { cores: 4, memoryMb: 16_384 };
  assert.equal(usualQuota(1_024, machine), 12);
  assert.equal(usualQuota(256, machine), 32);
  assert.equal(usualQuota(64_000, machine), 1);
  assert.ok(usualQuota(16) >= 1);
});
