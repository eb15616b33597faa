import { execFile, spawn } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, renameSync, rmSync } from 'node:fs';
import { mkdtemp } from 'node:fs/promises';
import { setPriority } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { environmentForAll, selectEnvironment } from '../core/child-environment.ts';
import { requireFreeSpace, sayEvery } from './long-wait.ts';

/** What the go.mod of the release asks for. */
export const goVersionNeeded = '1.25';

/** Module cache, build cache and the binary, measured 4 GB. */
const bytesNeeded = 5_000_000_000;

export interface BuildOptions {
  readonly version: string;
  readonly folder: string;
  readonly target: string;
  readonly log: (line: string) => void;
}

/** Builds the release from source through the Go checksum database. Everything but the binary is removed afterwards. */
export async function buildTemporalCli({ version, folder, target, log }: BuildOptions): Promise<void> {
  const goVersion = await findGo();
  if (goVersion === null) throw new Error(`there is no Go here; with Go ≥ ${goVersionNeeded} it could be built`);
  if (!isGoNewEnough(goVersion)) throw new Error(`Go ≥ ${goVersionNeeded} is needed to build it, found ${goVersion}`);
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  // We hold the lock: what lies here is from a build that was killed.
  for (const name of readdirSync(folder)) if (name.startsWith('building-')) removeFolder(join(folder, name));
  await requireFreeSpace(folder, bytesNeeded);
  const room = await mkdtemp(join(folder, 'building-'));
  try {
    const env = await buildEnvironment(room, version);
    log(`building the Temporal CLI ${version} with Go ${goVersion}: about 5 min, once`);
    const wait = sayEvery(log, () => 'building the Temporal CLI');
    try {
      await runGo(version, env, room);
    } finally {
      wait.end();
    }
    renameSync(join(room, 'bin', 'temporal'), target);
    log(`built the Temporal CLI in ${wait.elapsed()}`);
  } finally {
    removeFolder(room);
  }
}

/** `go version go1.26.8 linux/amd64` → `1.26.8` */
export function parseGoVersion(output: string): string | null {
  return /^go version go(\d+\.\d+(?:\.\d+)?)/m.exec(output)?.[1] ?? null;
}

export function isGoNewEnough(version: string): boolean {
  const [major = 0, minor = 0] = version.split('.').map(Number);
  const [majorNeeded = 0, minorNeeded = 0] = goVersionNeeded.split('.').map(Number);
  return major > majorNeeded || (major === majorNeeded && minor >= minorNeeded);
}

async function findGo(): Promise<string | null> {
  try {
    return parseGoVersion((await go(['version'])).stdout);
  } catch {
    return null;
  }
}

/** GOTOOLCHAIN=local: an older Go must say so, not silently fetch another. */
const goEnvironment = () => ({
  ...selectEnvironment([...environmentForAll, 'GO*'], process.env),
  GOTOOLCHAIN: 'local',
  GOFLAGS: '-modcacherw',
});

function go(args: readonly string[]): Promise<{ stdout: string }> {
  return promisify(execFile)('go', [...args], { env: goEnvironment(), timeout: 30_000 });
}

/** Caches of our own, removed afterwards; the user's module cache is read only if it has the sources already. */
async function buildEnvironment(room: string, version: string): Promise<Record<string, string>> {
  const theirs = (await go(['env', 'GOMODCACHE'])).stdout.trim();
  const hasSources = theirs !== '' && existsSync(join(theirs, 'github.com', 'temporalio', `cli@v${version}`));
  const folders = {
    GOBIN: join(room, 'bin'),
    GOCACHE: join(room, 'build'),
    GOTMPDIR: join(room, 'tmp'),
    GOMODCACHE: hasSources ? theirs : join(room, 'modules'),
  };
  for (const folder of Object.values(folders)) mkdirSync(folder, { recursive: true });
  return { ...goEnvironment(), ...folders, CGO_ENABLED: '0' };
}

function runGo(version: string, env: Record<string, string>, folder: string): Promise<void> {
  const flags = `-s -w -X github.com/temporalio/cli/temporalcli.Version=${version}`;
  return new Promise((resolve, reject) => {
    const child = spawn('go', ['install', '-ldflags', flags, `github.com/temporalio/cli/cmd/temporal@v${version}`], {
      cwd: folder,
      env,
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    const endWithUs = () => child.kill('SIGTERM');
    process.once('exit', endWithUs);
    if (child.pid !== undefined) beNice(child.pid);
    let said = '';
    child.stderr.on('data', (chunk: Buffer) => (said = (said + chunk.toString('utf8')).slice(-4_000)));
    child.on('error', reject);
    child.on('close', (code, signal) => {
      process.off('exit', endWithUs);
      if (code === 0) resolve();
      else reject(new Error(`go install ended with ${signal ?? code}: ${lastLine(said)}`));
    });
  });
}

/** The machine stays usable meanwhile. */
function beNice(pid: number): void {
  try {
    setPriority(pid, 10);
  } catch {
    // Only a courtesy.
  }
}

const lastLine = (text: string) => text.trim().split('\n').slice(-1)[0] ?? '';

function removeFolder(folder: string): void {
  rmSync(folder, { recursive: true, force: true, maxRetries: 3 });
}
