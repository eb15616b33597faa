/** The record of who changed what in a run's folder. */
import assert from 'node:assert/strict';
import { readdir } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { recordAround } from '../../activities/record-change.ts';
import { type Changed, changeLine, type RunChange } from '../../core/rl/changes.ts';
import { ownerIn, readChanges, writeChange } from '../../runs/changes.ts';
import { layout } from '../../runs/layout.ts';
import { makeRun } from '../activities/runs.ts';

const start: RunChange = {
  time: '2026-12-01T10:00:00.000Z',
  identity: 'ratchet ann@laptop 4711',
  principal: null,
  what: 'start',
  asked: '',
  step: null,
  workflow: 'words',
  execution: 'e1',
  id: 'start',
};
const stop: RunChange = {
  ...start,
  time: '2026-12-01T11:00:00.000Z',
  identity: 'ratchet ben@desk 12',
  what: 'stop',
  id: 'u/../1',
};

test('a change is written once, whatever its id is, and nothing that somebody said moves a terminal', async (t) => {
  const { run } = await makeRun(t);
  for (const change of [stop, start, stop, { ...stop, identity: 'ratchet eve@spot 3' }])
    await writeChange({ ...run, kind: 'run' }, change);
  const { changes, damaged } = await readChanges({ ...run, kind: 'run' });
  assert.deepEqual([changes, damaged], [[start, stop], []]);
  const harmful = { identity: 'ratchet \u001b[2Jann@laptop 1', principal: 'jwt:a\u202eb', what: 'pause', asked: '' };
  assert.equal(changeLine(harmful), '\\u001b[2Jann@laptop [jwt:a\\u202eb] asked: pause');
  assert.equal(changeLine({ ...harmful, identity: '', principal: null }), 'somebody without a name asked: pause');
});

test('a change that cannot be read hides no other and stops no run; who owns the run is not known then', async (t) => {
  const { run, store } = await makeRun(t);
  const nobody = () => Promise.resolve(null);
  const history = { update: nobody, around: () => Promise.resolve([start]), cancelled: nobody };
  const execution = { workflow: 'words', execution: 'e1' };
  assert.equal(await recordAround({ ...run, kind: 'run' }, history, execution), 'ann@laptop');
  await store.put(layout.change('e0', 'f'.repeat(64)), Buffer.from('{"schemaVersion":1,"who":"eve"}'));
  assert.equal(await recordAround({ ...run, kind: 'run' }, history, execution), null);
  const found = await readChanges({ ...run, kind: 'run' });
  assert.deepEqual(found.changes, [start]);
  assert.match(found.damaged.join(), /changes\/e0\.f{16}\.json: expected /);
  assert.equal(ownerIn(found), null);
});

test('a sweep, a pool, a search and an evaluation keep theirs apart, though they are of one name', async (t) => {
  const { run, folder } = await makeRun(t);
  const { name, store } = run;
  const place = { name, store, prefix: 'gepa/words/' };
  const all: readonly Changed[] = [
    { kind: 'run', name, store },
    { kind: 'sweep', name, store },
    { kind: 'pool', name, store },
    { kind: 'search', place },
    { kind: 'evaluation', place },
  ];
  for (const of of all) await writeChange(of, { ...stop, what: of.kind });
  for (const of of all) assert.deepEqual((await readChanges(of)).changes.map(({ what }) => what), [of.kind]); // prettier-ignore
  const kept = await readdir(path.dirname(folder), { recursive: true });
  assert.deepEqual(kept.filter((file) => path.basename(file) === 'changes').toSorted(), [
    'pools/words/changes',
    'sweeps/words/changes',
    'words/changes',
    ...['evaluation', 'search'].map((one) => `words/gepa/words/${one}/changes`),
  ]);
});
