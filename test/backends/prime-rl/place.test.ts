/** Folders that trainers work in: what is left by the dead goes, what others have stays. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, rmSync, utimesSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { openPlace } from '../../../backends/prime-rl/place.ts';
import { folderVariable, processesIn } from '../../../backends/prime-rl/processes.mjs';

test('a process’s folder is beside those of the living; one of the dead goes, with all that was started for it', async (t) => {
  const parent = mkdtempSync(path.join(tmpdir(), 'ratchet-places-'));
  t.after(() => rmSync(parent, { recursive: true, force: true }));
  const own = await openPlace(parent);
  const [machine, pid] = path.basename(own).split('-');
  const dead = path.join(parent, `${machine}-${pid}-1-00000000`); // a number that was used again
  const [elsewhere, forgotten] = ['0123456789ab', 'ba9876543210'].map((name) => path.join(parent, `${name}-1-1-00000000`)); // prettier-ignore
  const boots = ['0123456789ab', 'ba9876543210'].map((boot) => path.join(parent, `${machine!.split('.')[0]}.${boot}-1-1-00000000`)); // prettier-ignore
  const [before, beside] = boots as [string, string];
  for (const folder of [dead, elsewhere!, forgotten!, before, beside]) mkdirSync(folder);
  const long = new Date(Date.now() - 8 * 24 * 3_600_000);
  utimesSync(forgotten!, long, long);
  const dayAgo = new Date(Date.now() - 24 * 3_600_000);
  utimesSync(before, dayAgo, dayAgo); // the machine was started again since
  const children = [
    spawn('sleep', ['60'], { cwd: dead }),
    spawn('sleep', ['60'], { cwd: '/', env: { [folderVariable]: path.join(dead, 'start-1') } }),
  ];
  const ended = children.map((child) => once(child, 'exit'));
  await Promise.all(children.map((child) => once(child, 'spawn')));
  assert.equal(processesIn(dead).length, 2);
  const next = await openPlace(parent);
  assert.deepEqual((await Promise.all(ended)).map(([, signal]) => String(signal)), ['SIGKILL', 'SIGKILL']); // prettier-ignore
  assert.deepEqual(
    [own, next, elsewhere!, beside, dead, forgotten!, before].map((folder) => existsSync(folder)),
    [true, true, true, true, false, false, false],
  );
});
