import { readdir, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';

/** The plain files of a folder as bytes: the length of a list, the list as JSON, the files one after the other. */

const lengthBytes = 8;
const PackedList = z.array(z.strictObject({ name: z.string().regex(/^[\w.-]+$/), bytes: z.int().min(0) }));

export async function packFolder(folder: string): Promise<Uint8Array> {
  const names = (await readdir(folder)).sort();
  const files = await Promise.all(
    names.map(async (name) => ({ name, content: await readFile(path.join(folder, name)) })),
  );
  const list = Buffer.from(JSON.stringify(files.map(({ name, content }) => ({ name, bytes: content.length }))));
  const length = Buffer.alloc(lengthBytes);
  length.writeBigUInt64LE(BigInt(list.length));
  return new Uint8Array(Buffer.concat([length, list, ...files.map(({ content }) => content)]));
}

/** Throws `CheckpointDamaged` where the bytes are no packed folder. */
export async function unpackFolder(bytes: Uint8Array, folder: string): Promise<void> {
  const damaged = (why: string, cause?: unknown): RatchetError =>
    new RatchetError(
      'CheckpointDamaged',
      `The optimizer state is not one of the PyTorch trainer: ${why}. Restore it from the same checkpoint.`,
      { cause },
    );
  const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (buffer.length < lengthBytes) throw damaged(`it has ${buffer.length} bytes`);
  const listBytes = buffer.readBigUInt64LE();
  if (listBytes > BigInt(buffer.length - lengthBytes)) throw damaged('the list of its files is cut off');
  let start = lengthBytes + Number(listBytes);
  let list: z.infer<typeof PackedList>;
  try {
    list = PackedList.parse(JSON.parse(buffer.subarray(lengthBytes, start).toString('utf8')));
  } catch (error) {
    throw damaged('the list of its files cannot be read', error);
  }
  const total = list.reduce((sum, { bytes: size }) => sum + size, start);
  if (total !== buffer.length) throw damaged(`expected ${total} bytes, found ${buffer.length}`);
  for (const { name, bytes: size } of list) {
    if (name === '.' || name === '..') throw damaged(`it names a file ${name}`);
    await writeFile(path.join(folder, name), buffer.subarray(start, (start += size)), { mode: 0o600 });
  }
}
