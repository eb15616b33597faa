/** `ratchet rollouts` of a run that has none for its last committed step. */
import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { encodeStored } from '../../runs/forms/stored-forms.ts';
import { layout } from '../../runs/layout.ts';
import { commitFirst, makeRun, openRoles } from '../activities/runs.ts';
import { openCommands } from './typed.ts';

const typed = openCommands();

test('a run whose first step is under way says for which step there are some, or that there are none yet', async (t) => {
  const { run, spec, store, folder } = await makeRun(t);
  await store.put(layout.run(), encodeStored(layout.run(), { spec, begunAt: '2026-11-30T00:00:00.000Z' }));
  await commitFirst({ run, spec, store, folder }, openRoles());
  const said = async (...more: string[]): Promise<string> => {
    const { code, err } = await typed(path.dirname(folder), ['rollouts', run.name, '--store', 'file:.', ...more]);
    assert.equal(code, 1);
    return err;
  };
  assert.match(await said(), /Step 0 is the first version.* Nothing that it sampled is scored yet\./s);
  await store.put(`${layout.round('main', 1, 0, 3)}chunk_0.scored.jsonl.gz`, Buffer.from('not read'));
  assert.match(await said(), /There are of step 1, which is under way: npx ratchet-rl rollouts words --step 1/);
  await store.put(`${layout.round('main', 3, 4, 7)}chunk_0.scored.jsonl.gz`, Buffer.from('not read'));
  assert.match(await said('--step', '2'), /There are of steps 1 to 3, which is under way: .* --step 3/);
});
