import assert from 'node:assert/strict';
import { test } from 'node:test';
import { show } from '../../cli/commands/metrics.ts';

const records = Array.from({ length: 30 }, (_, i) => ({
  step: i + 1,
  lineage: 'main',
  metrics: { 'train/reward': i },
}));

test('what is exported is every step; the table says how many it leaves out', () => {
  assert.equal(show(records, [], { csv: true }).length, 31);
  assert.equal(show(records, [], { json: true }).length, 30);
  assert.equal(show(records, [], { csv: true, last: '3' }).length, 4);
  const table = show(records, [], {});
  assert.equal(table.length, 22);
  assert.equal(table.at(-1), '10 earlier steps: --all');
});
