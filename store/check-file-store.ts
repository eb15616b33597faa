import { randomUUID } from 'node:crypto';
import { link, mkdir, rm, stat, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../core/errors.ts';

/** Errors of file systems without hard links. */
const withoutLinks = ['EPERM', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS', 'EINVAL', 'EXDEV'];

/**
 * Refuses a folder whose file system lacks hard links, on which commits rest: of two writers only one may win. Other
 * problems are reported on writing, and may be repaired while the run waits. `linked`: for tests.
 */
export async function checkFileStore(folder: string, linked: typeof link = link): Promise<void> {
  const probe = path.join(folder, `.probe-${randomUUID()}`);
  try {
    await mkdir(folder, { recursive: true });
    await writeFile(probe, '');
  } catch {
    await rm(probe, { force: true }).catch(() => undefined); // it may have been created before the disk was full
    return;
  }
  try {
    await linked(probe, `${probe}.link`);
  } catch (cause) {
    const { code = '' } = cause as NodeJS.ErrnoException;
    if (!withoutLinks.includes(code)) return;
    const message = `The store ${folder} is on a file system without hard links (${code}), on which the commits of a run rest. Expected one that has them, such as ext4, XFS, APFS or NFS; or use an S3 store.`;
    throw new RatchetError('Unsupported', message, { cause });
  } finally {
    await Promise.all([probe, `${probe}.link`].map((file) => rm(file, { force: true }).catch(() => undefined)));
  }
}

/**
 * The obstacle at a folder's path, or on the way to it, that is no folder; null if there is a folder or nothing yet. An
 * unavailable or read-only disk does not count: it may be repaired while a run waits.
 */
export async function whatIsNoFolder(folder: string): Promise<string | null> {
  for (let at = path.resolve(folder); ; at = path.dirname(at)) {
    try {
      const found = await stat(at);
      if (found.isDirectory()) return null;
      return `${at}, which is ${found.isFile() ? 'a file' : 'a device, a socket or a pipe'}`;
    } catch (error) {
      const { code = '' } = error as NodeJS.ErrnoException;
      if (!['ENOENT', 'ENOTDIR'].includes(code) || at === path.dirname(at)) return null;
    }
  }
}
