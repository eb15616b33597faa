import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { FileStore } from '../../store/file-store.ts';
import { encodeJson } from '../../store/objects.ts';
import { RatchetError } from '../../core/errors.ts';
import { readCanary } from '../../runs/versions/canary.ts';

const canary = { digest: 'a'.repeat(64), tokenIds: [1, 2, 3], positions: [1, 2], logprobs: [-0.5, -1.25] };

test('a canary is read whole, or said to be damaged: it is never compared by halves, and never ends a run', async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-canary-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const store = new FileStore(folder);
  assert.equal(await readCanary(store, 'none.json'), null);
  await store.put('whole.json', encodeJson(canary));
  assert.deepEqual(await readCanary(store, 'whole.json'), canary);
  const damages = {
    'empty.json': '',
    'cut.json': JSON.stringify(canary).slice(0, -9),
    'number.json': '7',
    'null.json': 'null',
    'texts.json': JSON.stringify({ ...canary, logprobs: ['-0.5', '-1.25'] }),
    'shorter.json': JSON.stringify({ ...canary, logprobs: [-0.5] }),
    'nameless.json': JSON.stringify({ ...canary, digest: undefined }),
  };
  for (const [key, text] of Object.entries(damages)) {
    await store.put(key, Buffer.from(text));
    const read = await readCanary(store, key);
    assert.ok(read instanceof RatchetError, key);
    assert.match(read.message, new RegExp(key), 'it says where');
  }
});
