import assert from 'node:assert/strict';
import { test } from 'node:test';
import { keptRowsBytesMax } from '../../core/limits.ts';
import { encodeRows } from '../../store/objects.ts';
import { KeptRows, keptRows } from '../../learn/kept-rows.ts';

interface Said {
  readonly said: string;
}
const said = ['one', 'zwei', 'trois, ça', '四\n'].map((word) => ({ said: word }));

test('rows are those that were stored, whichever is asked for', () => {
  const rows = new KeptRows<Said>(encodeRows(said), 'rows.jsonl');
  assert.equal(rows.length, 4);
  for (const index of [3, 0, 2, 1, 3]) assert.deepEqual(rows.row(index), said[index]);
  const unended = new KeptRows<Said>(encodeRows(said).subarray(0, -1), 'rows.jsonl');
  assert.deepEqual([unended.length, unended.row(3)], [4, said[3]]);
  assert.equal(new KeptRows(new Uint8Array(), 'rows.jsonl').length, 0);
  const broken = new KeptRows(Buffer.from('{}\n{no\n'), 'rows.jsonl');
  assert.throws(() => broken.row(1), /rows\.jsonl, line 2: expected JSON/);
});

test('what is held is read once, and what was used long ago makes room', async () => {
  const reads: string[] = [];
  class Large extends KeptRows<Said> {
    override get sizeBytes(): number {
      return 0.4 * keptRowsBytesMax;
    }
  }
  const use = (digest: string) =>
    keptRows(digest, async () => {
      reads.push(digest);
      return new Large(encodeRows(said), digest);
    });
  for (const digest of ['a', 'b', 'a', 'c', 'a', 'b']) await use(digest);
  assert.deepEqual(reads, ['a', 'b', 'c', 'b']);
});

test('rows that could not be read are asked for again', async () => {
  const failing = keptRows('d', () => Promise.reject(new Error('gone')));
  await assert.rejects(failing, /gone/);
  assert.equal((await keptRows('d', async () => new KeptRows<Said>(encodeRows(said), 'd'))).length, 4);
});
