/** `ratchet runs` says what each run takes in its store, and what it cost. */
import assert from 'node:assert/strict';
import { statSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { storageOf } from '../../runs/storage.ts';
import { layout } from '../../runs/layout.ts';
import { encodeStored } from '../../runs/forms/stored-forms.ts';
import { commitFirst, makeRun, openRoles } from '../activities/runs.ts';
import { openCommands } from './typed.ts';

const typed = openCommands();

test('runs have their storage by kind, and their cost; a run that nothing was counted of has none', async (t) => {
  const { run, spec, store, folder } = await makeRun(t);
  await store.put(layout.run(), encodeStored(layout.run(), { spec, begunAt: '2026-11-30T00:00:00.000Z' }));
  await commitFirst({ run, spec, store, folder }, openRoles());
  await store.append(
    layout.metrics(),
    `${JSON.stringify({ lineage: 'main', step: 1, 'cost/prompt_tokens': 1000, 'cost/money': 1.5 })}\n`,
  );
  const counted = await storageOf(run);
  assert.equal(counted.byKind['weights'], bytesOf(folder, await store.list(layout.allWeights('main'))));
  assert.equal(
    counted.bytes,
    Object.values(counted.byKind).reduce((sum, bytes) => sum + bytes, 0),
  );
  assert.equal(counted.isWhole, true);
  assert.equal((await storageOf(run, AbortSignal.abort())).isWhole, false);

  const { code, out } = await typed(path.dirname(folder), ['runs', '--store', 'file:.', '--sizes', '--json']);
  assert.equal(code, 0);
  const [listed] = JSON.parse(out) as { run: string; storage: object; cost: { money: number } }[];
  assert.equal(listed!.run, run.name);
  assert.deepEqual(listed!.storage, counted);
  assert.equal(listed!.cost.money, 1.5);
  const shown = (await typed(path.dirname(folder), ['runs', '--store', 'file:.'])).out;
  assert.match(shown, /^words .*\d [kM]?B .*1\.5/m);
});

function bytesOf(folder: string, keys: readonly string[]): number {
  return keys.reduce((sum, key) => sum + statSync(path.join(folder, key)).size, 0);
}
