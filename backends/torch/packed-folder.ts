import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';

/**
 * The form of an optimizer's state until 29 November 2026: the plain files of its folder in one object, which begins with the length of a
 * list, and the list as JSON.
 */

const lengthBytes = 8;
const PackedList = z.array(z.strictObject({ name: z.string().regex(/^[\w.-]+$/), bytes: z.int().min(0) }));

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
