/** `ratchet runs` says what each run takes in its store, and what it cost. */
import assert from 'node:assert/strict';
import { statSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { withFolder } from '../../cli/commands/run/runs.ts';
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

test('a run that has ended at its last step is completed, also as a part of a sweep that trained it to its rungs', () => {
  const ended = { workflowId: 'lr-01', state: 'stopped', step: 4, maxSteps: null, reward: 0.5, waitingFor: null };
  const served = { run: 'lr-01', startedAt: '2026-12-01T16:17:28', committedAt: null, store: null, ...ended };
  const stored = { run: 'lr-01', step: 4, maxSteps: 4, reward: 0.5, committedAt: null, note: null };
  const at = (state: 'finished' | 'stopped', maxSteps: number) =>
    withFolder(served, { ...stored, state, maxSteps }, 'file:///runs/');
  assert.deepEqual(at('finished', 4), { ...served, state: 'completed', maxSteps: 4, store: 'file:///runs/' });
  assert.deepEqual(at('stopped', 8), { ...served, maxSteps: 8, store: 'file:///runs/' });
  assert.equal(withFolder(served, undefined, 'file:///runs/'), served);
});

function bytesOf(folder: string, keys: readonly string[]): number {
  return keys.reduce((sum, key) => sum + statSync(path.join(folder, key)).size, 0);
}
