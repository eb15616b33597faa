import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { mkdir, open, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import path from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import { RatchetError } from '../../core/errors.ts';
import { hubAttemptsMax, hubPaceBytesMin, hubPauseMs, hubStallMsMax } from '../../core/limits.ts';
import { Pace } from '../../host/read-body.ts';
import { isAlive } from '../../host/is-alive.ts';
import type { HubClient, HubFile } from './hub-client.ts';

interface Wanted {
  readonly id: string;
  readonly commit: string;
  readonly file: HubFile;
  /** The folder of contents. */
  readonly blobs: string;
  /** Called with the number of bytes so far. */
  readonly onBytes: (bytes: number) => void;
}

/**
 * The path of a file's content in the cache: existing, or fetched and verified with the Hub's digest. Partial content
 * of a broken connection stays, and is continued, even by another process later.
 */
export async function fetchBlob(client: HubClient, wanted: Wanted): Promise<string> {
  const { file, blobs, onBytes } = wanted;
  const blob = path.join(blobs, file.digest);
  if ((await sizeOf(blob)) === file.sizeBytes) {
    onBytes(file.sizeBytes);
    return blob;
  }
  await mkdir(blobs, { recursive: true });
  // Not huggingface_hub's `.incomplete`, which it may be writing. Machines with a shared disk have one each.
  const part = `${blob}.${hostname()}.ratchet-incomplete`;
  return alone(`${part}.lock`, async () => {
    if ((await sizeOf(blob)) === file.sizeBytes) return blob; // another process has fetched it
    await fetchWhole(client, wanted, part);
    const found = await digestOf(part, file);
    if (found !== file.digest) {
      await rm(part, { force: true });
      const message = `${wanted.id}: ${file.name} has the digest ${found}, expected ${file.digest}. What came was deleted: type the same again.`;
      throw new RatchetError('CheckpointDamaged', message);
    }
    await rename(part, blob);
    return blob;
  });
}

/** One process of this machine at a time; the lock of a dead process is taken over. */
async function alone<T>(lock: string, work: () => Promise<T>): Promise<T> {
  while (!(await take(lock))) {
    const holder = Number(await readFile(lock, 'utf8').catch(() => ''));
    // An empty lock is being written.
    if (holder > 0 && !isAlive(holder)) await rm(lock, { force: true });
    else await wait(hubPauseMs);
  }
  try {
    return await work();
  } finally {
    await rm(lock, { force: true });
  }
}

async function take(lock: string): Promise<boolean> {
  try {
    await writeFile(lock, String(process.pid), { flag: 'wx' });
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  }
}

/** Continues until all bytes are here. Attempts that bring enough bytes do not count against the limit. */
async function fetchWhole(client: HubClient, wanted: Wanted, part: string): Promise<void> {
  const { sizeBytes, name } = wanted.file;
  let stalled = 0;
  for (;;) {
    const there = (await sizeOf(part)) ?? 0;
    if (there > sizeBytes) await rm(part, { force: true });
    else if (there === sizeBytes && (sizeBytes > 0 || (await sizeOf(part)) === 0)) return;
    const from = there > sizeBytes ? 0 : there;
    const error = await appendFrom(client, wanted, part, from).then(
      () => null,
      (cause: unknown) => cause,
    );
    if (error !== null && (!(error instanceof RatchetError) || !error.isRetryable)) throw error;
    const now = (await sizeOf(part)) ?? 0;
    stalled = now - from >= hubPaceBytesMin || now === sizeBytes ? 0 : stalled + 1;
    if (stalled >= hubAttemptsMax) {
      const message = `${wanted.id}: ${name} stopped coming at ${now} of ${sizeBytes} bytes (${error?.message ?? 'the connection ended'}). What is here is kept: type the same again to continue.`;
      throw new RatchetError('ServerUnavailable', message, { cause: error });
    }
    if (error !== null) await wait(error.retryAfterMs ?? hubPauseMs * 2 ** Math.max(0, stalled - 1));
  }
}

async function appendFrom(client: HubClient, wanted: Wanted, part: string, from: number): Promise<void> {
  const { id, commit, file, onBytes } = wanted;
  const stalled = new AbortController();
  const slow = `less than ${hubPaceBytesMin} bytes came in ${hubStallMsMax / 1000} s`;
  const pace = new Pace({ ms: hubStallMsMax, bytesMin: hubPaceBytesMin }, () => stalled.abort(new Error(slow)));
  try {
    const response = await client.open(id, commit, file, from, stalled.signal);
    const isContinued = response.status === 206;
    const target = await open(part, isContinued ? 'a' : 'w', 0o644);
    let here = isContinued ? from : 0;
    try {
      for await (const chunk of response.body as AsyncIterable<Uint8Array>) {
        pace.came(chunk.length);
        here += chunk.length;
        // Stops at a server that sends more than announced.
        if (here > file.sizeBytes) break;
        await target.write(chunk);
        onBytes(here);
      }
    } finally {
      await target.close();
    }
  } catch (cause) {
    if (cause instanceof RatchetError) throw cause;
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new RatchetError('ServerUnavailable', `${id}: ${file.name} broke off (${why}).`, { cause });
  } finally {
    pace.end();
  }
}

/** sha256, or git's digest of content: sha1 over `blob SIZE\0` and the bytes. */
async function digestOf(part: string, { digest, sizeBytes }: HubFile): Promise<string> {
  const hash = digest.length === 64 ? createHash('sha256') : createHash('sha1').update(`blob ${sizeBytes}\0`);
  for await (const chunk of createReadStream(part) as AsyncIterable<Buffer>) hash.update(chunk);
  return hash.digest('hex');
}

async function sizeOf(file: string): Promise<number | null> {
  return stat(file).then(
    ({ size }) => size,
    () => null,
  );
}
