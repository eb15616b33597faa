import { createHash } from 'node:crypto';
import { basename, dirname, join } from 'node:path';
import { openRegular } from '../../host/regular-file.ts';
import { ofRepository } from '../model/model-repository.ts';

const listName = 'SHA256SUMS';
const listBytesMax = 1 << 20;
const knownMax = 256;

interface ListedFilesOptions {
  /** Checks a folder that the list names, such as the one of an adapter's base. */
  readonly resolveFolder: (folder: string) => Promise<string>;
}

/** Recognizes versions by their files, whatever engine computed their digest. */
export class ListedFiles {
  /** Digest of a file by its state on disk: adapters share their base. */
  readonly #known = new Map<string, string>();

  /** Whether a folder has the list with this sha256, and every file that it names is what it says. */
  async areIn(folder: string, sums: string, { resolveFolder }: ListedFilesOptions): Promise<boolean> {
    const list = await readList(join(folder, listName)).catch(() => null); // then it is not the one that was asked for
    if (list === null || createHash('sha256').update(list).digest('hex') !== sums) return false;
    for (const line of list.toString('utf8').split('\n')) {
      const [, expected, name] = /^([0-9a-f]{64}) {2}(.+)$/.exec(line) ?? [];
      if (expected === undefined || name === undefined) continue;
      const place = dirname(name) === '.' ? folder : await resolveFolder(join(folder, dirname(name)));
      if ((await this.#digestOf(place, basename(name))) !== expected) return false;
    }
    return true;
  }

  async #digestOf(folder: string, name: string): Promise<string | null> {
    const file = await openRegular(join(folder, name), ofRepository(folder)).catch(() => null);
    if (file === null) return null;
    try {
      const { ino, size, mtimeNs, ctimeNs } = await file.stat({ bigint: true });
      const state = `${folder}/${name} ${ino} ${size} ${mtimeNs} ${ctimeNs}`;
      const known = this.#known.get(state);
      if (known !== undefined) return known;
      const hash = createHash('sha256');
      for await (const chunk of file.createReadStream({ autoClose: false, start: 0 })) hash.update(chunk as Buffer);
      const digest = hash.digest('hex');
      this.#known.set(state, digest);
      if (this.#known.size > knownMax) this.#known.delete(this.#known.keys().next().value!);
      return digest;
    } finally {
      await file.close();
    }
  }
}

async function readList(path: string): Promise<Buffer> {
  const file = await openRegular(path, { within: [dirname(path)] });
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(listBytesMax), 0, listBytesMax, 0);
    return buffer.subarray(0, bytesRead);
  } finally {
    await file.close();
  }
}
