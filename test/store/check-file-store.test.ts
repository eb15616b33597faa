import assert from 'node:assert/strict';
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { checkFileStore } from '../../store/check-file-store.ts';

test('a folder on a file system without hard links is refused at once; nothing is left of the question', async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-links-'));
  t.after(() => rm(folder, { recursive: true }));
  await checkFileStore(folder);
  const answering = (code: string) => async () => Promise.reject(Object.assign(new Error(code), { code }));
  await assert.rejects(checkFileStore(folder, answering('EPERM')), {
    code: 'Unsupported',
    isRetryable: false,
    message: /without hard links \(EPERM\).*S3 store/,
  });
  await checkFileStore(folder, answering('EIO')); // a temporary failure, which writers there see
  assert.deepEqual(await readdir(folder), []);
});

test('a store that is no folder, and cannot become one, is refused by name when the run file is read', async (t) => {
  const projectFolder = await mkdtemp(path.join(tmpdir(), 'ratchet-no-folder-'));
  t.after(() => rm(projectFolder, { recursive: true }));
  const file = path.join(projectFolder, 'run.toml');
  await writeFile(file, 'model = "preset:reverse-text-0.2m"\n[[env]]\nid = "reverse-text"\n');
  const read = (uri: string) => loadRunConfig('run.toml', { projectFolder, overrides: { 'store.uri': uri } });
  for (const [uri, found] of [
    ['file:///dev/zero', '/dev/zero, which is a device'],
    ['file:///dev/zero/below/it', '/dev/zero, which is a device'],
    ['file:run.toml', `${file}, which is a file`],
  ] as const) {
    await assert.rejects(read(uri), (error: Error) => {
      assert.match(error.message, /store\.uri.*expected +a folder, or a place where one can be made/s);
      return error.message.includes(found);
    });
  }
  await read('file:not/there/yet');
});
