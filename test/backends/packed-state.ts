import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';

/** The files of a folder in one object, as PyTorch's trainer kept its optimizer's state until 29 November 2026. */
export async function packedAsBefore(folder: string): Promise<Uint8Array> {
  const files = await Promise.all(
    (await readdir(folder)).sort().map(async (name) => ({ name, content: await readFile(path.join(folder, name)) })),
  );
  return packed(files);
}

/** The same of given files, the list of which may be wrong. */
export function packed(files: readonly { readonly name: string; readonly content: Uint8Array }[]): Uint8Array {
  const list = Buffer.from(JSON.stringify(files.map(({ name, content }) => ({ name, bytes: content.length }))));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(list.length));
  return new Uint8Array(Buffer.concat([length, list, ...files.map(({ content }) => content)]));
}
