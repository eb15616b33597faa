/** Names under which no run begins, because their folders are beside the runs. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { namesBesideRuns } from '../../core/names.ts';
import { encodeStored } from '../../runs/forms/stored-forms.ts';
import { claimRun } from '../../runs/claim-run.ts';
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
