import { mkdir, rename, rm, statfs, symlink, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { hubAttemptsMax, hubPauseMs } from '../../core/limits.ts';
import { fetchBlob } from './fetch-blob.ts';
import { askedAgain, type HubClient, type HubFile } from './hub-client.ts';

export interface HubProgress {
  readonly file: string;
  /** Total over all fetched files. */
  readonly bytes: number;
  readonly totalBytes: number;
}

export function bytesOf(files: readonly HubFile[]): number {
  return files.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0);
}

/** One commit of a repository, in the cache's layout. */
export class Snapshot {
  readonly folder: string;
  readonly #client: HubClient;
  readonly #repository: string;
  readonly #id: string;
  readonly #commit: string;

  constructor(client: HubClient, repository: string, id: string, commit: string) {
    this.#client = client;
    this.#repository = repository;
    this.#id = id;
    this.#commit = commit;
    this.folder = path.join(this.#repository, 'snapshots', commit);
  }

  /** Fetches a file if it is missing, and links it. Returns its path in the snapshot. */
  async add(file: HubFile, onBytes: (bytes: number) => void): Promise<string> {
    const blobs = path.join(this.#repository, 'blobs');
    const blob = await fetchBlob(this.#client, { id: this.#id, commit: this.#commit, file, blobs, onBytes });
    const link = path.join(this.folder, ...file.name.split('/'));
    await mkdir(path.dirname(link), { recursive: true });
    const fresh = `${link}.${process.pid}.new`;
    await rm(fresh, { force: true });
    await symlink(path.relative(path.dirname(link), blob), fresh);
    await rename(fresh, link);
    return link;
  }

  /** Adds files one after the other; progress covers all of them. Returns their paths. */
  async addAll(
    files: readonly HubFile[],
    onProgress: (progress: HubProgress) => void = () => undefined,
  ): Promise<string[]> {
    const totalBytes = bytesOf(files);
    const paths: string[] = [];
    let done = 0;
    for (const file of files) {
      paths.push(await this.add(file, (bytes) => onProgress({ file: file.name, bytes: done + bytes, totalBytes })));
      done += file.sizeBytes;
    }
    return paths;
  }

  /** Called last, so that a branch's name refers to a whole snapshot. */
  async name(revision: string): Promise<void> {
    if (revision === this.#commit) return;
    const ref = path.join(this.#repository, 'refs', ...revision.split('/'));
    await mkdir(path.dirname(ref), { recursive: true });
    const fresh = `${ref}.${process.pid}.new`;
    await writeFile(fresh, this.#commit);
    await rename(fresh, ref);
  }
}

/** Throws unless the missing bytes fit, with a little room left. */
export async function requireRoom(cache: string, id: string, totalBytes: number): Promise<void> {
  await mkdir(cache, { recursive: true });
  const { bavail, bsize } = await statfs(cache);
  if (bavail * bsize > totalBytes) return;
  const [needed, free] = [totalBytes, bavail * bsize].map((bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB`);
  const message = `${id} takes ${needed}, and ${cache} has ${free} left. Make room, or set HF_HOME to a folder with more.`;
  throw new RatchetError('StoreFull', message);
}

export function requireRevision(revision: string): void {
  if (/^\w[\w.-]*(?:\/\w[\w.-]*)*$/.test(revision)) return;
  throw new RatchetError('ConfigInvalid', `expected a branch, a tag or a commit, got ${JSON.stringify(revision)}.`);
}

export function again<T>(work: () => Promise<T>): Promise<T> {
  return askedAgain(hubAttemptsMax, hubPauseMs, work);
}
