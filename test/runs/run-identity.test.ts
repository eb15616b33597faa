import assert from 'node:assert/strict';
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { refuseOtherRun } from '../../runs/run-identity.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { openRunStore } from '../../store/index.ts';
import { encodeJson } from '../../store/objects.ts';
import { layout } from '../../runs/layout.ts';

const config = `model = "preset:reverse-text-0.2m"
max_steps = 2
[[env]]
id = "reverse-text"
`;

test('a name that is taken by a run of other settings is refused before anything starts, in the words of a run file', async (t) => {
  const projectFolder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-identity-'));
  t.after(() => rm(projectFolder, { recursive: true, force: true }));
  await writeFile(path.join(projectFolder, 'words.toml'), config);
  const specOf = async (overrides: Readonly<Record<string, string>>) =>
    (await loadRunConfig('words.toml', { projectFolder, overrides })).spec;
  const spec = await specOf({});
  await refuseOtherRun(spec); // nothing is there
  const store = openRunStore(spec.store.uri, spec.name);
  await store.putIfAbsent(layout.run(), encodeJson({ schemaVersion: 1, name: spec.name, spec }));
  const before = await readdir(path.join(projectFolder, 'outputs/words'));
  await refuseOtherRun(await specOf({ 'max-steps': '9' })); // may change

  const other = await specOf({ 'rollouts-per-example': '4', 'sampling.temperature': '0.5', 'batch-size': '16' });
  await assert.rejects(refuseOtherRun(other), (error: Error) => {
    assert.match(error.message, /holds a run named words that was begun with other settings:\n/);
    assert.match(error.message, /^ {2}batch_size: was \d+, now 16$/m);
    assert.match(error.message, /^ {2}rollouts_per_example: was \d+, now 4$/m);
    assert.match(error.message, /^ {2}\[sampling\] temperature: was 1, now 0\.5$/m);
    assert.doesNotMatch(error.message, /maxTokens|batchSize/);
    return true;
  });
  assert.deepEqual(await readdir(path.join(projectFolder, 'outputs/words')), before);
});
