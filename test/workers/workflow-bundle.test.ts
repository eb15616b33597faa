import assert from 'node:assert/strict';
import { cp, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { workflowCodeVersion } from '../../workers/workflow-bundle.ts';

const root = fileURLToPath(new URL('../../', import.meta.url));

test('the same workflow code has the same version in another folder, and a change to it another one', async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-version-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  for (const name of ['core', 'workflows', 'workers', 'package-lock.json']) {
    await cp(path.join(root, name), path.join(folder, name), { recursive: true });
  }
  const ours = await workflowCodeVersion();
  assert.match(ours, /^[0-9a-f]{32}$/);
  assert.equal(await workflowCodeVersion(folder), ours);
  await writeFile(path.join(folder, 'workers/another.ts'), '');
  assert.equal(await workflowCodeVersion(folder), ours, 'what is no workflow code does not count');
  await writeFile(path.join(folder, 'workflows/another.ts'), '');
  assert.notEqual(await workflowCodeVersion(folder), ours);
});
