import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { keepSpilled, readSpilled } from '../../backends/environments/verifiers/spill.ts';

/** A bridge's folder with a child's in it, and a file of ours beside them. */
function folders(t: TestContext) {
  const root = mkdtempSync(path.join(tmpdir(), 'ratchet-spill-'));
  t.after(() => rmSync(root, { recursive: true }));
  const [ours, folder] = [path.join(root, 'ours.json'), path.join(root, 'bridge')];
  const spill = path.join(folder, 'spill-1-1');
  mkdirSync(spill, { recursive: true });
  writeFileSync(ours, '"ours"');
  return { root, ours, folder, spill };
}

test('a result that a child left in its folder is read, and its file removed', async (t) => {
  const { folder, spill } = folders(t);
  writeFileSync(path.join(spill, 'a.json'), '[1]');
  assert.deepEqual(await readSpilled(path.join(spill, 'a.json'), spill), [1]);
  writeFileSync(path.join(spill, 'a.jsonl'), '{}\n');
  assert.equal(await keepSpilled(path.join(spill, 'a.jsonl'), folder), path.join(folder, 'a.jsonl'));
  assert.deepEqual(readdirSync(spill), []);
});

test('a file outside of its folder that a child names is neither read nor moved nor removed', async (t) => {
  const { root, ours, folder, spill } = folders(t);
  const link = path.join(spill, 'link.json');
  symlinkSync(ours, link);
  symlinkSync(root, path.join(folder, 'spill-1-2'));
  for (const said of [ours, '../ours.json', `${spill}/../../ours.json`, link]) {
    await assert.rejects(readSpilled(said, spill), /expected a plain one in its folder|ELOOP/, said);
  }
  symlinkSync(ours, link);
  for (const said of [ours, `${folder}/spill-1/../../ours.json`, `${folder}/spill-1-1/../ours.json`, link]) {
    await assert.rejects(keepSpilled(said, folder), /expected a plain one in its folder/, said);
  }
  assert.equal(readFileSync(ours, 'utf8'), '"ours"');
});

test('a pipe in place of a file does not make its reader wait', async (t) => {
  const { spill } = folders(t);
  const pipe = path.join(spill, 'pipe.json');
  execFileSync('mkfifo', [pipe]);
  await assert.rejects(readSpilled(pipe, spill), /expected a plain one/);
});
