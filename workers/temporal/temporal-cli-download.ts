import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createReadStream, createWriteStream, existsSync, mkdirSync, renameSync, rmSync, statSync } from 'node:fs';
import { mkdtemp, open } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { environmentForAll, selectEnvironment } from '../../core/child-environment.ts';
import { asItIs, Pace } from '../../host/read-body.ts';
import { requireFreeSpace, sayEvery } from '../stack/long-wait.ts';

export const downloadedVersion = '1.9.1';

/**
 * sha256 sums of the accepted release archives. Two or more public projects that install this release pin the same sums; some of them cite
 * the release's own checksum list. A new version needs new sums; there is no "latest".
 */
const archives: Readonly<Record<string, { readonly name: string; readonly sha256: string }>> = {
  'linux x64': {
    name: `temporal_cli_${downloadedVersion}_linux_amd64.tar.gz`,
    sha256: '09a0326a51db84d02735e53542b9ebd8c4758daf47482a9ab0abce15844e60d5',
  },
  'linux arm64': {
    name: `temporal_cli_${downloadedVersion}_linux_arm64.tar.gz`,
    sha256: '6c57c352d52fc3df34412376fd9ba6f74b7e3ace8e426e6cba8600156d36a145',
  },
  'darwin x64': {
    name: `temporal_cli_${downloadedVersion}_darwin_amd64.tar.gz`,
    sha256: '48cdd6c84c56e27ae8e4d9a47052b89289a9c552dee029b49dd312c6fb72873f',
  },
  'darwin arm64': {
    name: `temporal_cli_${downloadedVersion}_darwin_arm64.tar.gz`,
    sha256: '41e0425378fcb4fb5766340b97435e20fe47bbff2d7bf644ec2d51f7662b7c56',
  },
};

/** A fire wall that drops packets must not cost minutes; a slow line may. */
const connectTimeoutMs = 8_000;
const stallTimeoutMs = 30_000;
const paceBytesMin = 16 * 1024;

/** The archive is bounded so that a wrong answer cannot fill the disk. */
const archiveBytesMax = 400 * 1024 * 1024;
const bytesNeeded = 600 * 1024 * 1024;

interface DownloadOptions {
  readonly folder: string;
  readonly target: string;
  readonly log: (line: string) => void;
  readonly platform?: string;
  readonly from?: string;
  readonly archive?: { readonly name: string; readonly sha256: string };
}

/** Downloads, verifies and unpacks the official release to `target`, and returns that path. Resumes an interrupted download. */
export async function downloadTemporalCli(options: DownloadOptions): Promise<string> {
  const { folder, target, log, platform = `${process.platform} ${process.arch}` } = options;
  const archive = options.archive ?? archives[platform];
  if (!archive) throw new Error(`there is no official release for ${platform}`);
  const from = options.from ?? `https://github.com/temporalio/cli/releases/download/v${downloadedVersion}`;
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  await requireFreeSpace(folder, bytesNeeded);
  const part = join(folder, `${archive.name}.part`);
  await fetchTo(part, `${from}/${archive.name}`, log);
  const sha256 = await digestOf(part);
  if (sha256 !== archive.sha256) {
    rmSync(part, { force: true });
    throw new Error(`what came for ${archive.name} has sha256 ${sha256}, expected ${archive.sha256}; it was deleted`);
  }
  await unpack(part, folder, target);
  rmSync(part, { force: true });
  return target;
}

async function fetchTo(part: string, url: string, log: (line: string) => void): Promise<void> {
  const start = existsSync(part) ? statSync(part).size : 0;
  const abort = new AbortController();
  const timer = setTimeout(
    () => abort.abort(new Error(`no answer within ${connectTimeoutMs / 1000} s`)),
    connectTimeoutMs,
  );
  const slow = `less than ${paceBytesMin} bytes came in ${stallTimeoutMs / 1000} s`;
  let pace: Pace | null = null;
  let received = 0;
  const wait = sayEvery(log, () => `downloading the Temporal CLI, ${Math.round(received / 1e6)} MB`);
  try {
    const response = await fetch(url, {
      signal: abort.signal,
      headers: { ...asItIs, ...(start > 0 ? { range: `bytes=${start}-` } : {}) },
    });
    // 416: the part is complete already, or belongs to another file; its digest decides.
    if (response.status === 416) return;
    if (!response.ok || response.body === null) throw new Error(`${url} answers ${response.status}`);
    log(`downloading the official Temporal CLI ${downloadedVersion} (about 45 MB, once)`);
    const resumed = response.status === 206;
    received = resumed ? start : 0;
    clearTimeout(timer);
    pace = new Pace({ ms: stallTimeoutMs, bytesMin: paceBytesMin }, () => abort.abort(new Error(slow)));
    const file = await open(part, resumed ? 'a' : 'w', 0o600);
    try {
      for await (const chunk of response.body as AsyncIterable<Uint8Array>) {
        pace.came(chunk.length);
        received += chunk.length;
        if (received > archiveBytesMax) throw new Error(`${url} is larger than ${archiveBytesMax} bytes`);
        await file.write(chunk);
      }
    } finally {
      await file.close();
    }
  } catch (error) {
    throw new Error(`${url}: ${explain(abort.signal.aborted ? abort.signal.reason : error)}`, { cause: error });
  } finally {
    clearTimeout(timer);
    pace?.end();
    wait.end();
  }
}

/** The message `fetch failed` hides the reason in its cause. */
function explain(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return error.cause instanceof Error ? error.cause.message : error.message;
}

/** Limit for the unpacked `temporal`; measured 120 MB. */
const binaryBytesMax = 600 * 1024 * 1024;

/**
 * Extracts one file from a gzipped tar archive, by default the Temporal CLI, as a stream into a file of our own: other
 * entries of the archive (absolute paths, `..`, links, devices) never touch the disk, and the size is bounded.
 */
export async function unpack(
  archive: string,
  folder: string,
  target: string,
  { member = 'temporal', bytesMax = binaryBytesMax }: { readonly member?: string; readonly bytesMax?: number } = {},
): Promise<void> {
  const room = await mkdtemp(join(folder, 'unpacking-'));
  try {
    const unpacked = join(room, basename(member));
    const tar = spawn('tar', ['-xzOf', archive, member], {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: selectEnvironment(environmentForAll, process.env),
    });
    const ended = once(tar, 'close') as Promise<[number | null, NodeJS.Signals | null]>;
    ended.catch(() => {}); // A tar that does not start is reported by its stream first.
    let said = '';
    tar.stderr.on('data', (chunk: Buffer) => (said = (said + chunk.toString('utf8')).slice(0, 500)));
    let bytes = 0;
    const bounded = async function* (source: AsyncIterable<Buffer>): AsyncIterable<Buffer> {
      for await (const chunk of source) {
        bytes += chunk.length;
        if (bytes > bytesMax) throw new Error(`${archive} unpacks to more than ${bytesMax} bytes`);
        yield chunk;
      }
    };
    try {
      await pipeline(tar.stdout, bounded, createWriteStream(unpacked, { flags: 'wx', mode: 0o755 }));
    } catch (error) {
      tar.kill('SIGKILL');
      throw error;
    }
    const [code, signal] = await ended;
    if (code !== 0) throw new Error(`tar ended with ${signal ?? code}: ${said.trim()}`);
    if (bytes === 0) throw new Error(`${archive} holds no file called ${member}`);
    renameSync(unpacked, target);
  } finally {
    rmSync(room, { recursive: true, force: true });
  }
}

async function digestOf(path: string): Promise<string> {
  const hash = createHash('sha256');
  await pipeline(createReadStream(path), hash);
  return hash.digest('hex');
}
