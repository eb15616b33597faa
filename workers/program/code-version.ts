import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../../', import.meta.url));

/** Ratchet's own version, written into every commit. */
export const { version: codeVersion } = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8')) as {
  readonly version: string;
};

/** Folders that contain a worker's code. */
const rooms = 'activities backends config core engine environments runs workers workflows'.split(' ');
const digestDigits = 8;

/**
 * Digest of the workers' source code, the same in every folder. It distinguishes versions of the code. Read once per
 * process, on first use. Unlike the version of the workflows' code it changes with every line that a worker may run.
 */
export function codeDigest(): string {
  digest ??= digestOf(root);
  return digest;
}

let digest: string | null = null;

/** The digest of another copy of Ratchet. */
export function digestOf(folder: string): string {
  const hash = createHash('sha256');
  for (const room of rooms) {
    const files = readdirSync(path.join(folder, room), { recursive: true, encoding: 'utf8' });
    for (const file of files.filter((name) => /\.(?:ts|mjs|cjs)$/.test(name)).sort()) {
      hash.update(`${room}/${file.replaceAll(path.sep, '/')}\n`).update(readFileSync(path.join(folder, room, file)));
    }
  }
  return hash.digest('hex').slice(0, digestDigits);
}
