import assert from 'node:assert/strict';
import { test } from 'node:test';
import { graceSecondsDefault, readGrace } from '../../cli/typed/read-grace.ts';

test('a rollout worker hands over what it plays within a second of SIGTERM, a GPU worker finishes its step', () => {
  const { rollout, train } = graceSecondsDefault;
  assert.ok(rollout < 1 && train >= 20);
});

test('seconds are read, anything else is refused', () => {
  assert.deepEqual(['0', '0.5', '120'].map(readGrace), [0, 0.5, 120]);
  for (const text of ['', '-1', 'long', '90000']) assert.throws(() => readGrace(text), /Expected seconds/);
});
