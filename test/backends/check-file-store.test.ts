import assert from 'node:assert/strict';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { checkFileStore } from '../../backends/store/check-file-store.ts';

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
  await checkFileStore(folder, answering('EIO')); // weather, which whoever writes there meets
  assert.deepEqual(await readdir(folder), []);
});
