/** Names under which no run begins, because their folders are beside the runs. */
import assert from 'node:assert/strict';
import { readdir } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { namesBesideRuns } from '../../core/names.ts';
import { encodeStored } from '../../runs/forms/stored-forms.ts';
import { writeChange } from '../../runs/changes.ts';
import { claimRun } from '../../runs/claim-run.ts';
import { requireFreeName } from '../../runs/free-name.ts';
import { layout } from '../../runs/layout.ts';
import { refuseOtherRun } from '../../runs/run-identity.ts';
import { makeRun } from '../activities/runs.ts';

test('no run begins under the name of a folder beside the runs; one that is there is continued', async (t) => {
  for (const name of namesBesideRuns) {
    const { spec, store } = await makeRun(t, {}, name);
    await assert.rejects(refuseOtherRun(spec), {
      code: 'ConfigInvalid',
      message: /got .*: beside the runs.*--name NAME/,
    });
    await assert.rejects(
      claimRun(spec, 'workflow', async () => false),
      { code: 'ConfigInvalid' },
    );
    await store.put(layout.run(), encodeStored(layout.run(), { spec, begunAt: '2026-12-01T00:00' }));
    await refuseOtherRun(spec);
  }
});

test('changes of what is no run are kept in folders of such names', async (t) => {
  const { run, folder } = await makeRun(t);
  const { name, store } = run;
  const noted = {
    time: '2026-12-01T00:00',
    identity: 'ratchet ann@laptop 1',
    principal: null,
    what: 'pause',
    asked: '',
  };
  for (const kind of ['sweep', 'pool', 'schedule'] as const)
    await writeChange({ kind, name, store }, { ...noted, step: null, workflow: name, execution: 'one', id: 'pause' });
  const beside = (await readdir(path.dirname(folder))).filter((entry) => entry !== name);
  assert.equal(beside.length, 3);
  for (const entry of beside) assert.throws(() => requireFreeName(entry), { code: 'ConfigInvalid' });
});
