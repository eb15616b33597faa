/** Options that name the file which a command writes. */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { outputFile } from '../../cli/typed/output-file.ts';

test('a file to write is one in a folder that is there, and - is none', async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-output-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  assert.equal(await outputFile('FILE', path.join(folder, 'a.tar')), path.join(folder, 'a.tar'));
  await assert.rejects(outputFile('FILE', folder), /FILE: expected a file, got the folder/);
  await assert.rejects(outputFile('FILE', path.join(folder, 'none/a.tar')), /in a folder that is there/);
  await assert.rejects(outputFile('FILE', '-'), /FILE: expected a file, got "-": this is not written to a pipe/);
});
