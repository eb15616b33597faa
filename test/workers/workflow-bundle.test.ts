import assert from 'node:assert/strict';
import { cp, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { workflowCodeVersion } from '../../workers/workflow-bundle.ts';

const root = fileURLToPath(new URL('../../', import.meta.url));

async function versionIn(folder: string): Promise<string> {
  const file = pathToFileURL(path.join(folder, 'workers/workflow-bundle.ts')).href;
  const copy = (await import(file)) as { workflowCodeVersion: typeof workflowCodeVersion };
  return copy.workflowCodeVersion();
}

test('the same workflow code has the same version in another folder, and a change to it another one', async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-version-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  for (const name of ['core', 'workflows', 'backends', 'workers', 'engine', 'package.json', 'package-lock.json']) {
    await cp(path.join(root, name), path.join(folder, name), { recursive: true });
  }
  await symlink(path.join(root, 'node_modules'), path.join(folder, 'node_modules'));
  const ours = await workflowCodeVersion();
  assert.match(ours, /^[0-9a-f]{32}$/);
  assert.equal(await versionIn(folder), ours);
  await writeFile(path.join(folder, 'workers/another.ts'), '');
  assert.equal(await versionIn(folder), ours, 'what is no workflow code does not count');
  await writeFile(path.join(folder, 'workflows/another.ts'), '');
  assert.notEqual(await versionIn(folder), ours);
});
