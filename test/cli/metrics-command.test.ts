import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { runsAndNames, show, showSeveral } from '../../cli/commands/stored/metrics.ts';
import { layout } from '../../runs/layout.ts';
import { storeOf } from '../../runs/run-access.ts';

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

const several = [
  { run: 'slow', records: records.slice(0, 2) },
  {
    run: 'quick',
    records: records
      .slice(0, 3)
      .map((record) => ({ ...record, metrics: { 'train/reward': record.step / 2, loss: 1 } })),
  },
];

test('several runs stand beside one another, a table for each metric', () => {
  assert.deepEqual(showSeveral(several, [], {}), [
    'train/reward',
    'step  slow  quick',
    '   1     0    0.5',
    '   2     1      1',
    '   3          1.5',
  ]);
  const both = showSeveral(several, ['*'], {});
  assert.deepEqual(
    both.filter((line) => !/\d/.test(line)),
    ['loss', 'step  slow  quick', '', 'train/reward', 'step  slow  quick'],
  );
  const csv = showSeveral(several, [], { csv: true });
  assert.equal(csv[0], 'run,step,lineage,loss,train/reward');
  assert.equal(csv.length, 6);
  assert.equal(csv[3], 'quick,1,main,1,0.5');
  assert.deepEqual(JSON.parse(showSeveral(several, ['loss'], { json: true })[2]!), {
    run: 'quick',
    step: 1,
    lineage: 'main',
    metrics: { loss: 1 },
  });
});

test('further words are runs until one is a metric; what is neither is refused', async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-metrics-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const store = pathToFileURL(`${folder}/`).href;
  for (const name of ['quick', 'third']) {
    const place = storeOf({ name, store });
    await place.put(layout.run(), Buffer.from('{}'));
    await place.append(layout.metrics(), `${JSON.stringify({ step: 1, lineage: 'main', 'train/reward': 1 })}\n`);
  }
  const first = { run: 'slow', records };
  const read = async (...words: string[]) => {
    const { others, names } = await runsAndNames(first, words, store);
    return [others.map(({ run }) => run), names];
  };
  assert.deepEqual(await read('quick', 'third', 'train/reward'), [['quick', 'third'], ['train/reward']]);
  assert.deepEqual(await read('train/*'), [[], ['train/*']]);
  assert.deepEqual(await read('quick'), [['quick'], []]);
  const { others, names } = await runsAndNames(first, ['quick', 'thrid'], store);
  assert.throws(() => showSeveral([first, ...others], names, {}), /No run, and no metric of this run, is called thrid/);
});
