import { execFile, spawn } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, renameSync, rmSync } from 'node:fs';
import { mkdtemp } from 'node:fs/promises';
import { setPriority } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { environmentForAll, selectEnvironment } from '../core/child-environment.ts';
import { waitForLock } from './held-lock.ts';
import { requireFreeSpace, sayEvery } from './long-wait.ts';

/** What the go.mod of each program we build asks for. */
export const goVersionNeeded = '1.25';

export interface GoProgram {
  /** For people: `Temporal CLI`. */
  readonly name: string;
  /** `github.com/temporalio/cli`, and the package in it that is the program. */
  readonly module: string;
  readonly package: string;
  /** Without its v. */
  readonly version: string;
  readonly ldflags?: string;
  /** Module cache, build cache and the binary, measured. */
  readonly bytesNeeded: number;
  readonly minutes: number;
}

interface BuildOptions {
  readonly program: GoProgram;
  /** Where it is built, on the disk of the binary. */
  readonly folder: string;
  /** The binary. */
  readonly target: string;
  readonly log: (line: string) => void;
}

/** Builds a release from source through the Go checksum database. Everything but the binary is removed afterwards. */
export async function buildGoProgram({ program, folder, target, log }: BuildOptions): Promise<void> {
  const { name, version, minutes } = program;
  const goVersion = await findGo();
  if (goVersion === null) throw new Error(`there is no Go here; with Go ≥ ${goVersionNeeded} it could be built`);
  if (!isGoNewEnough(goVersion)) throw new Error(`Go ≥ ${goVersionNeeded} is needed to build it, found ${goVersion}`);
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  // We hold the lock: what lies here is from a build that was killed.
  for (const entry of readdirSync(folder)) if (entry.startsWith('building-')) removeFolder(join(folder, entry));
  await requireFreeSpace(folder, program.bytesNeeded);
  const room = await mkdtemp(join(folder, 'building-'));
  try {
    const env = await buildEnvironment(room, program);
    log(`building the ${name} ${version} with Go ${goVersion}: about ${minutes} min, once`);
    const wait = sayEvery(log, () => `building the ${name}`);
    try {
      await runGo(program, env, room);
    } finally {
      wait.end();
    }
    renameSync(join(room, 'bin', program.package.split('/').at(-1)!), target);
    log(`built the ${name} in ${wait.elapsed()}`);
  } finally {
    removeFolder(room);
  }
}

/** Runs work that two processes must not do at once: filling a folder of the cache. */
export async function buildAlone<T>(
  { name, folder, log }: { readonly name: string; readonly folder: string; readonly log: (line: string) => void },
  work: () => Promise<T>,
): Promise<T> {
  const lock = await waitForLock(`build ${folder}`, null, ({ pid }) => {
    log(`another process (${pid}) is getting the ${name}; waiting for it`);
  });
  try {
    return await work();
  } finally {
    lock.release();
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
async function buildEnvironment(room: string, { module, version }: GoProgram): Promise<Record<string, string>> {
  const theirs = (await go(['env', 'GOMODCACHE'])).stdout.trim();
  const hasSources = theirs !== '' && existsSync(join(theirs, `${module}@v${version}`));
  const folders = {
    GOBIN: join(room, 'bin'),
    GOCACHE: join(room, 'build'),
    GOTMPDIR: join(room, 'tmp'),
    GOMODCACHE: hasSources ? theirs : join(room, 'modules'),
  };
  for (const folder of Object.values(folders)) mkdirSync(folder, { recursive: true });
  return { ...goEnvironment(), ...folders, CGO_ENABLED: '0' };
}

function runGo(program: GoProgram, env: Record<string, string>, folder: string): Promise<void> {
  const { module, version, ldflags = '-s -w' } = program;
  return new Promise((resolve, reject) => {
    const child = spawn('go', ['install', '-ldflags', ldflags, `${module}/${program.package}@v${version}`], {
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
