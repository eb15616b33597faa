import { parseExact } from '../../../core/exact-json.ts';
import { constants } from 'node:fs';
import { lstat, open, rename, rm } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../../core/errors.ts';
import type { JsonValue } from '../../../config/run-spec.ts';

/**
 * A child's message that is too large for a line comes as a file named by the child. Environments' code runs in the
 * child and may send any name: only a plain file in the child's own folder is read, moved or removed here.
 */

/** Node's strings end here. */
const spilledBytesMax = 2 ** 29;

/** Reads a result and removes its file. */
export async function readSpilled(said: string, folder: string): Promise<JsonValue> {
  const file = confined(said, folder);
  try {
    // Neither follows a link nor waits for the writer of a pipe.
    const handle = await open(file, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
    try {
      const found = await handle.stat();
      if (!found.isFile() || found.size > spilledBytesMax) throw refused(said, folder);
      return parseExact(await handle.readFile('utf8')) as JsonValue;
    } finally {
      await handle.close();
    }
  } finally {
    await rm(file, { force: true });
  }
}

/** Moves a file that a child made in one of its folders below `folder` to `folder` itself. */
export async function keepSpilled(said: string, folder: string): Promise<string> {
  const own = path.dirname(path.resolve(said));
  if (!path.basename(own).startsWith('spill-') || path.dirname(own) !== path.resolve(folder)) {
    throw refused(said, folder);
  }
  const kept = path.join(folder, path.basename(said));
  await rename(confined(said, own), kept);
  if ((await lstat(kept)).isFile()) return kept;
  await rm(kept);
  throw refused(said, folder);
}

function confined(said: string, folder: string): string {
  const file = path.resolve(said);
  if (path.dirname(file) === path.resolve(folder)) return file;
  throw refused(said, folder);
}

function refused(said: string, folder: string): RatchetError {
  return new RatchetError(
    'EnvironmentBroken',
    `The Python process of the verifiers environments named a file that is not read: expected a plain one in its folder ${folder}, got ${JSON.stringify(said.slice(0, 300))}. The code of an environment did that, or of a package that it uses: look at it before you use it again.`,
  );
}
