import assert from 'node:assert/strict';
import { test } from 'node:test';
import { applyOverrides } from '../../config/toml/overrides.ts';

test('a setting that is deeper than any there is points nowhere, and is not looked for', () => {
  const deep = Array.from({ length: 100_000 }, () => 'x').join('.');
  const { table, misplaced } = applyOverrides({ a: 1 }, { [deep]: '1', b: '2' }, () => 'any');
  assert.deepEqual(table, { a: 1, b: 2 });
  assert.equal(misplaced.length, 1);
  assert.match(misplaced[0]!.reason, /at most 20 tables deep/);
  assert.ok(misplaced[0]!.key.length < 100);
});

test('a list may be typed with commas alone, as other command lines have it', () => {
  const typed = (value: string): unknown => applyOverrides({}, { ids: value }, () => 'list').table['ids'];
  assert.deepEqual(typed('0,1'), [0, 1]);
  assert.deepEqual(typed('3'), [3]);
  assert.deepEqual(typed('[0, 1]'), [0, 1]);
  assert.deepEqual(typed('q_proj, v_proj'), ['q_proj', 'v_proj']);
  assert.equal(typed('None'), 'None');
});
