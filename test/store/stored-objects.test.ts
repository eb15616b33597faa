import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, describe, test } from 'node:test';
import { claimIn, commitIn, runRecordIn } from '../../runs/forms/record-shapes.ts';
import { readMetrics } from '../../runs/metrics/metrics.ts';
import { FileStore } from '../../store/file-store.ts';
import { decodeJson, decodeRows, encodeJson } from '../../store/objects.ts';

const root = mkdtempSync(path.join(os.tmpdir(), 'ratchet-objects-'));
after(() => rmSync(root, { recursive: true, force: true }));

/** Other things that may be in the place of an object. */
const otherThings: Readonly<Record<string, (file: string) => void>> = {
  'a folder': (file) => mkdirSync(file),
  'a FIFO': (file) => void execFileSync('mkfifo', [file]),
  'a link to itself': (file) => symlinkSync(file, file),
  'a link to /dev/zero': (file) => symlinkSync('/dev/zero', file),
  'more than fits into memory': (file) => {
    writeFileSync(file, '');
    truncateSync(file, 2 ** 31);
  },
};

describe('a stored object that is something else', () => {
  for (const [what, place] of Object.entries(otherThings)) {
    test(`${what} in its place is damage, and named`, { skip: process.platform === 'win32' }, async () => {
      const folder = mkdtempSync(path.join(root, 'store-'));
      const store = new FileStore(folder);
      place(path.join(folder, 'run.json'));
      const isDamage = (error: Error): boolean =>
        /^(CheckpointDamaged|Unsupported)$/.test(error.name) && error.message.includes('run.json');
      await assert.rejects(store.read('run.json'), isDamage);
      await assert.rejects(store.putIfAbsent('run.json', Buffer.from('{}\n')), isDamage);
      if (!what.startsWith('more')) await assert.rejects(store.readFrom('run.json', 0), isDamage);
      if (what !== 'a folder') assert.ok((await store.list('')).includes('run.json'));
    });
  }

  test('JSON of another shape is damage wherever it is found by its key alone', () => {
    const isDamage = (error: Error): boolean => error.name === 'CheckpointDamaged' && error.message.startsWith('KEY');
    for (const text of ['', 'null', '[]', '7', '"text"', '{', '[null]', '{}', '\u0000', '{"step":']) {
      for (const read of [commitIn, claimIn, runRecordIn])
        assert.throws(() => read(Buffer.from(text), 'KEY'), isDamage, text);
      if (text !== '{}') assert.throws(() => decodeJson(Buffer.from(text), 'KEY'), isDamage, text);
    }
    assert.throws(
      () => decodeRows(Buffer.from('{}\nnull\n'), 'KEY'),
      /^CheckpointDamaged: KEY, line 2: expected a JSON object, found null/,
    );
  });

  test('a line of metrics that is no row stands for none', async () => {
    const store = new FileStore(mkdtempSync(path.join(root, 'store-')));
    const row = { step: 1, lineage: 'main', 'train/reward': 1 };
    const lines = ['null', '7', '[]', '{}', '{"step":"1","lineage":"main"}', '{"step":', ''];
    await store.put('metrics.jsonl', Buffer.concat([Buffer.from(lines.join('\n')), encodeJson(row)]));
    assert.deepEqual(await readMetrics(store), [row]);
  });
});
