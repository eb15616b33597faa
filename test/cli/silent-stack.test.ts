import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { describe } from '../../cli/describe/status.ts';
import { reportOf } from '../../cli/commands/run/status.ts';
import { encodeJson } from '../../store/objects.ts';
import { layout } from '../../runs/layout.ts';
import { diskTrouble } from '../../cli/temporal/silent-stack.ts';
import { choosePort } from '../../workers/stack/ports.ts';
import { holdProject } from '../../workers/stack/project-lock.ts';
import { advance, commitFirst, makeRun, openRoles } from '../activities/runs.ts';

let folder: string;

before(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-silent-'));
  process.env['RATCHET_RUNTIME_DIR'] = await mkdtemp(path.join(os.tmpdir(), 'rt-'));
  await mkdir(path.join(folder, '.ratchet'));
  process.chdir(folder);
});
after(async () => {
  process.chdir(os.tmpdir());
  await rm(process.env['RATCHET_RUNTIME_DIR']!, { recursive: true, force: true });
  await rm(folder, { recursive: true, force: true });
});

test('a run whose server does not answer is not reported as stopped while its processes run', async (t) => {
  const run = await makeRun(t);
  const roles = openRoles();
  await advance(run, roles, await commitFirst(run, roles));
  const { store, name } = run.run;
  await run.store.put(layout.run(), encodeJson({ schemaVersion: 1, name, spec: run.spec }));
  const alone = await describe(await reportOf(name, store));
  assert.match(alone[0]!, /: not running, step 1 of .* \(no Temporal server runs here; its folder says this\)$/);

  const hold = await holdProject(folder);
  t.after(() => hold.release());
  const starting = await describe(await reportOf(name, store));
  assert.match(starting.join('\n'), /the processes of this folder run .* Temporal server is being started\. Nothing/);

  hold.tell({ state: 'ready', temporalAddress: `127.0.0.1:${await choosePort(0)}`, uiUrl: 'http://127.0.0.1:1' });
  const lines = await describe(await reportOf(name, store));
  const text = lines.join('\n');
  assert.match(lines[0]!, /^\S+: step 1 of .* \(its folder says this\)$/);
  assert.match(text, new RegExp(`run \\(process ${process.pid}\\), and their Temporal server does not answer\\.`));
  assert.doesNotMatch(text, /not running|continue with/);
});

test('a full disk is named, and so is a folder that cannot be written', async () => {
  const space = (bavail: number) => () => Promise.resolve({ bavail, bsize: 4096 });
  assert.equal(await diskTrouble(folder, space(1_000)), null);
  assert.equal(await diskTrouble(folder, space(2)), `the disk of ${folder} is full (8 KiB are free); make room on it`);
  assert.match(
    (await diskTrouble(path.join(folder, 'gone')))!,
    /gone, where its database is, cannot be written \(ENOENT\)$/,
  );
});
