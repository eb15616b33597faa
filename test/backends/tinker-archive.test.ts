import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtemp, readdir, readFile, rm, stat } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { isTrouble, unpackArchive } from '../../backends/tinker/index.ts';
import { entry } from '../stand-ins/tinker/tar.ts';

let root: string;
before(async () => void (root = await mkdtemp(path.join(os.tmpdir(), 'ratchet-tinker-archive-'))));
after(() => rm(root, { recursive: true, force: true }));

const whole = (...parts: readonly Buffer[][]): Buffer => Buffer.concat([...parts.flat(), Buffer.alloc(1024)]);
const packed = (...parts: readonly Buffer[][]): Buffer => gzipSync(whole(...parts));

/** The bytes in pieces of an odd size, as a network gives them. */
async function* inPieces(bytes: Buffer, size = 777): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

async function unpacked(bytes: Buffer): Promise<Record<string, string>> {
  const folder = await mkdtemp(path.join(root, 'into-'));
  const names = await unpackArchive(inPieces(bytes), folder, 'archive');
  return Object.fromEntries(await Promise.all(names.map(async (name) => [name, await readFile(path.join(folder, name), 'utf8')]))); // prettier-ignore
}

/** A file whose size is written by others than octal digits; its checksum is right. */
function withSize(write: (field: Buffer) => void, content: Buffer): Buffer[] {
  const [header, ...rest] = entry('x', content) as [Buffer, ...Buffer[]];
  write(header.subarray(124, 136).fill(0));
  header.write('        ', 148);
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148);
  return [header, ...rest];
}

function pax(key: string, value: string): Buffer[] {
  const body = ` ${key}=${value}\n`;
  let length = body.length + 1;
  while (String(length).length + body.length !== length) length = String(length).length + body.length;
  return entry('pax', Buffer.from(`${length}${body}`), 'x');
}

describe('the archive of weights', () => {
  for (const [how, made] of [
    ['tar', whole],
    ['tar.gz', packed],
  ] as const) {
    test(`a ${how} gives its plain files by name`, async () => {
      const content = 'weights '.repeat(1_000);
      const bytes = made(
        entry('./', Buffer.alloc(0), '5'),
        entry('./a.json', Buffer.from('{}')),
        entry('part/b.safetensors', Buffer.from(content)),
      );
      assert.deepEqual(await unpacked(bytes), { 'a.json': '{}', 'part/b.safetensors': content });
    });

    test(`names and sizes that do not fit into a header of a ${how} are read in GNU's and pax's forms`, async () => {
      const long = `${'long/'.repeat(40)}name`;
      const binary = (field: Buffer): void => {
        field.writeUInt32BE(3, 8);
        field[0] = 0x80;
      };
      const bytes = made(
        [...entry('././@LongLink', Buffer.from(`${long}\0`), 'L'), ...entry('cut', Buffer.from('one'))],
        withSize(binary, Buffer.from('two')),
        [...pax('path', 'by-pax'), ...pax('size', '5')],
        withSize((field) => field.write('0'.repeat(11)), Buffer.from('three')),
      );
      assert.deepEqual(await unpacked(bytes), { [long]: 'one', x: 'two', 'by-pax': 'three' });
    });
  }

  test('a file beyond 8 GiB is written as it comes, and is never whole in memory', async () => {
    const size = 9 * 2 ** 30;
    const header = withSize((field) => {
      field[0] = 0x80;
      field.writeBigUInt64BE(BigInt(size), 4);
    }, Buffer.alloc(0))[0]!;
    const piece = Buffer.alloc(2 ** 20);
    let sent = 0;
    async function* parts(): AsyncGenerator<Uint8Array> {
      yield header;
      for (; sent < 64; sent++) yield piece;
    }
    const folder = await mkdtemp(path.join(root, 'large-'));
    const before = process.memoryUsage().arrayBuffers;
    await assert.rejects(unpackArchive(parts(), folder, 'archive'), /cut off/);
    assert.equal((await stat(path.join(folder, 'x'))).size, 64 * 2 ** 20, 'all of it that came');
    assert.ok(process.memoryUsage().arrayBuffers - before < 16 * 2 ** 20);
  });

  for (const [what, bytes] of [
    ['an absolute path', packed(entry('/etc/passwd', Buffer.from('x')))],
    ['a path that leads out of it', packed(entry('../x', Buffer.from('x')))],
    ['a path that leads out of it, in a plain tar', whole(entry('a/../../x', Buffer.from('x')))],
    ['a link', packed(entry('x', Buffer.alloc(0), '2'))],
    ['a device', packed(entry('x', Buffer.alloc(0), '3'))],
    ['one name twice', packed(entry('x', Buffer.from('1')), entry('./x', Buffer.from('2')))],
    ['one name twice in other words', whole(entry('a/x', Buffer.from('1')), entry('a/.//x', Buffer.from('2')))],
    ['a file below a file', whole(entry('x', Buffer.from('1')), entry('x/y', Buffer.from('2')))],
    ['a file in the place of a folder', whole(entry('x/y', Buffer.from('1')), entry('x', Buffer.from('2')))],
    ['a folder’s name for a file', whole(entry('.', Buffer.from('1')))],
    ['a file of a hundred megabytes out of a few', packed(entry('x', Buffer.alloc(100 * 2 ** 20)))],
    ['a link before a large file', packed(entry('x', Buffer.alloc(0), '2'), entry('y', randomBytes(2 ** 20)))],
    ['no archive', Buffer.from('<html>'.repeat(200))],
    ['a short text', Buffer.from('<html>')],
    ['bytes that only begin like a gzip', Buffer.concat([Buffer.from([0x1f, 0x8b]), Buffer.alloc(600, 7)])],
    ['an archive that is cut off', gzipSync(entry('x', Buffer.alloc(2000))[0]!)],
    ['an archive that is cut off behind a file', Buffer.concat(entry('x', Buffer.from('x')))],
    ['a gzip that is cut off', packed(entry('x', Buffer.from('x'.repeat(5_000)))).subarray(0, 60)],
    ['a size below zero', whole(withSize((field) => field.write('-1000'), Buffer.alloc(0)))],
    ['a size that is no number', whole(withSize((field) => field.write('7x'), Buffer.alloc(0)))],
    ['a negative binary size', whole(withSize((field) => void field.fill(0xff), Buffer.alloc(0)))],
    ['a size of pax that is no number', whole([...pax('size', 'much'), ...entry('x', Buffer.alloc(0))])],
    ['more files than weights have', packed(...Array.from({ length: 600 }, (_, i) => entry(`${i}`, Buffer.alloc(0))))],
    ['a hundred megabytes out of a few', gzipSync(Buffer.alloc(100 * 2 ** 20))],
  ] as const) {
    test(`with ${what} is refused`, async () => {
      const folder = await mkdtemp(path.join(root, 'refused-'));
      const outside = await readdir(root);
      await assert.rejects(unpackArchive(inPieces(bytes), folder, 'archive'), (error) => isTrouble(error));
      assert.deepEqual(await readdir(root), outside, 'nothing is written beside its folder');
    });
  }
});
