import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { gzipSync } from 'node:zlib';

/** A folder's files as a tar, in the form that Python's tarfile writes by default: ustar headers. */
export function tar(folder: string): Buffer {
  const parts = readdirSync(folder).flatMap((name) => entry(name, readFileSync(path.join(folder, name))));
  return Buffer.concat([...parts, Buffer.alloc(1024)]);
}

export function tarGz(folder: string): Buffer {
  return gzipSync(tar(folder));
}

export function entry(name: string, content: Buffer, type = '0'): Buffer[] {
  const header = Buffer.alloc(512);
  header.write(name, 0);
  header.write('0000644\0', 100);
  header.write(`${content.length.toString(8).padStart(11, '0')}\0`, 124);
  header.write('        ', 148);
  header.write(type, 156);
  header.write('ustar\x0000', 257);
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148);
  return [header, content, Buffer.alloc((512 - (content.length % 512)) % 512)];
}
