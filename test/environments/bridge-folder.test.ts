/** The folder with logs of Python processes, and its removal when they are gone. */
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { bridgeFolder } from '../../backends/environments/verifiers/bridge-folder.ts';

test('of processes that are gone the logs of the newest stay, and nothing else', (t) => {
  const project = mkdtempSync(path.join(tmpdir(), 'ratchet-bridge-folder-'));
  t.after(() => rmSync(project, { recursive: true }));
  const root = path.join(project, '.ratchet', 'environments');
  const gone = (i: number) => path.join(root, `${5_000_000 + i}-1`); // no system gives such numbers
  for (let i = 0; i < 25; i++) {
    mkdirSync(gone(i), { recursive: true });
    for (const name of ['environments-0.log', 'environments-0.log.1', 'inputs.jsonl'])
      writeFileSync(path.join(gone(i), name), 'x');
    const at = Date.now() / 1000 - 1_000 + i;
    utimesSync(gone(i), at, at);
  }
  const alive = path.join(root, `${process.pid}-99`);
  mkdirSync(alive);
  writeFileSync(path.join(alive, 'inputs.jsonl'), 'x');
  const own = bridgeFolder(project);
  assert.equal(path.dirname(own), root);
  assert.deepEqual([existsSync(gone(4)), existsSync(gone(5))], [false, true]);
  assert.deepEqual(readdirSync(gone(24)), ['environments-0.log', 'environments-0.log.1']);
  assert.deepEqual(readdirSync(alive), ['inputs.jsonl']);
});
