import assert from 'node:assert/strict';
import { cp, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { workflowCodeVersion } from '../../workers/program/workflow-bundle.ts';

const root = fileURLToPath(new URL('../../', import.meta.url));

test('the version of the workflow code is a digest of what the workflow bundle is made of, and of nothing else', async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-version-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  for (const name of ['core', 'config', 'runs', 'workflows', 'activities', 'npm-shrinkwrap.json']) {
    await cp(path.join(root, name), path.join(folder, name), { recursive: true });
  }
  const ours = await workflowCodeVersion();
  assert.match(ours, /^[0-9a-f]{32}$/);
  assert.equal(await workflowCodeVersion(folder), ours, 'the same in another folder');

  const after = async (file: string, change: (text: string) => string): Promise<string> => {
    const at = path.join(folder, file);
    const before = await readFile(at, 'utf8');
    const changed = change(before);
    assert.notEqual(changed, before, `${file} is changed`);
    await writeFile(at, changed);
    try {
      return await workflowCodeVersion(folder);
    } finally {
      await writeFile(at, before);
    }
  };
  const stays = {
    'config/dialects/grpo.ts': (text: string) => `${text}\nexport const another = 1;\n`,
    'config/toml/parse-toml.ts': (text: string) => text.replace('expected', 'awaited'),
    'core/limits.ts': (text: string) => `${text}\nexport const anotherLimit = 1;\n`,
    'workflows/train-run.ts': (text: string) => `// A comment.\n${text}`,
    'npm-shrinkwrap.json': (text: string) => text.replace(/("node_modules\/koffi": \{\s*"version": ")[^"]*/, '$19.9.9'),
  };
  for (const [file, change] of Object.entries(stays))
    assert.equal(await after(file, change), ours, `${file} is no part`);
  const changes = {
    'workflows/train-run.ts': (text: string) => text.replace('await control.untilResumed();', ''),
    'workflows/options.ts': (text: string) => text.replace("'10m'", "'11m'"),
    'core/limits.ts': (text: string) => text.replace(/(historyEventsMax = )[\d_]+/, '$11'),
    'npm-shrinkwrap.json': (text: string) =>
      text.replace(/("node_modules\/@temporalio\/workflow": \{\s*"version": ")[^"]*/, '$19.9.9'),
  };
  for (const [file, change] of Object.entries(changes))
    assert.notEqual(await after(file, change), ours, `${file} counts`);
});
