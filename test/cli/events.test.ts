/** `ratchet events --changes` where nothing runs. */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { openCommands } from './typed.ts';

const typed = openCommands();

test('changes of a name that is no run are refused with what else it may name, unless that was typed', async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-events-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const asked = await typed(folder, ['events', 'lr', '--changes']);
  assert.notEqual(asked.code, 0);
  assert.match(asked.err, /There is no run lr.*--of sweep, --of search, --of evaluation, --of pool, --of schedule\./s);
  const ofRun = await typed(folder, ['events', 'lr', '--changes', '--of', 'run']);
  assert.match(ofRun.err, /There is no run lr/);
  assert.doesNotMatch(ofRun.err, /--of sweep/);
  const ofSweep = await typed(folder, ['events', 'lr', '--changes', '--of', 'sweep']);
  assert.deepEqual([ofSweep.code, ofSweep.err], [0, '']);
  assert.match(ofSweep.out, /no change of a sweep lr is in \.\/outputs/);
});
