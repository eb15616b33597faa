import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { nameOfFolder } from '../../cli/eval/subject/local-model.ts';

test("the weights of two runs' step_100, and other weights in one folder, are different models to an evaluation", async (t) => {
  const outputs = await mkdtemp(path.join(os.tmpdir(), 'ratchet-folder-name-'));
  t.after(() => rm(outputs, { recursive: true, force: true }));
  const folderOf = async (run: string, weights: string): Promise<string> => {
    const folder = path.join(outputs, run, 'weights/step_100');
    await mkdir(folder, { recursive: true });
    await writeFile(path.join(folder, 'config.json'), '{}');
    await writeFile(path.join(folder, 'model.safetensors'), weights);
    return folder;
  };
  const [a, b] = [await folderOf('a', 'one'), await folderOf('b', 'two')];
  const name = await nameOfFolder(a);
  assert.match(name, /^a-step_100-[0-9a-f]{8}$/);
  assert.match(await nameOfFolder(b), /^b-step_100-[0-9a-f]{8}$/);
  assert.notEqual((await nameOfFolder(b)).slice(-8), name.slice(-8));
  assert.equal(await nameOfFolder(`${a}/`), name);
  await folderOf('a', 'other weights');
  assert.notEqual(await nameOfFolder(a), name);
});
