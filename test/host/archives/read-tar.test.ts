import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { ByteReader } from '../../../host/archives/byte-reader.ts';
import { cleanTar, readTar } from '../../../host/archives/read-tar.ts';
import { type TarEntry, writeTar } from '../../../host/archives/write-tar.ts';
import { attackTars } from '../../backends/sandboxes/attack-tars.ts';

async function* inPieces(bytes: Uint8Array, size = 777): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

async function whole(parts: AsyncIterable<Uint8Array>): Promise<Buffer> {
  const all: Uint8Array[] = [];
  for await (const part of parts) all.push(part);
  return Buffer.concat(all);
}

const bounds = { bytesMax: 64 * 2 ** 20, where: 'a snapshot' };

describe('a saved folder', () => {
  const long = `${'folder/'.repeat(30)}näme with 🦉`;
  const entries: readonly TarEntry[] = [
    { is: 'folder', name: 'empty', mode: 0o700, modifiedS: 7 },
    { is: 'file', name: long, mode: 0o755, modifiedS: 1_700_000_000, size: 700, content: [Buffer.alloc(700, 'x')] },
    { is: 'file', name: 'none', mode: 0o644, modifiedS: 0, size: 0, content: [] },
    { is: 'same', name: 'twin', mode: 0o755, modifiedS: 0, target: long },
    { is: 'link', name: 'out', mode: 0o777, modifiedS: 0, target: `/${'elsewhere/'.repeat(20)}` },
  ];

  test('is read as it was written, whatever its names', async () => {
    const written = await whole(writeTar(entries));
    const read: object[] = [];
    for await (const entry of readTar(new ByteReader(inPieces(written)), {
      what: 'it',
      takes: 'tree',
      entriesMax: 10,
      bytesMax: 1e6,
    })) {
      read.push(
        entry.is === 'file' ? { ...entry, content: [await whole(entry.content as AsyncIterable<Uint8Array>)] } : entry,
      );
    }
    assert.deepEqual(read, entries.map((entry) => (entry.is === 'file' ? { ...entry, content: [Buffer.concat([...(entry.content as Iterable<Uint8Array>)])] } : entry))); // prettier-ignore
  });

  test('that is clean stays as it is; equal folders give equal bytes', async () => {
    const written = await whole(writeTar(entries));
    assert.ok((await whole(cleanTar(inPieces(written, 100), bounds))).equals(written));
  });

  for (const [what, tar] of attackTars()) {
    test(`with ${what} is refused`, async () => {
      await assert.rejects(whole(cleanTar(inPieces(tar, 4096), bounds)), {
        name: 'TarTrouble',
        message: /^a snapshot: /,
      });
    });
  }

  test('with more entries than it may have is refused', async () => {
    const many = Array.from({ length: 20 }, (_, i): TarEntry => ({
      is: 'folder',
      name: `${i}`,
      mode: 0o755,
      modifiedS: 0,
    }));
    const read = async (): Promise<void> => {
      for await (const _ of readTar(new ByteReader(writeTar(many)), {
        what: 'it',
        takes: 'tree',
        entriesMax: 10,
        bytesMax: 1e6,
      }));
    };
    await assert.rejects(read(), /one file too many/);
  });
});
