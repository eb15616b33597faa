import { execFile, spawn } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, renameSync, rmSync } from 'node:fs';
import { mkdtemp } from 'node:fs/promises';
import { setPriority } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { ensureGo, type GoToolchain } from './go-toolchain.ts';
import { waitForLock } from '../stack/held-lock.ts';
import { requireFreeSpace, sayEvery } from '../stack/long-wait.ts';

export interface GoProgram {
  /** Name for people: `Temporal CLI`. */
  readonly name: string;
  /** `github.com/temporalio/cli`, and the package in it that is the program. */
  readonly module: string;
  readonly package: string;
  /** Version without its leading v. */
  readonly version: string;
  readonly ldflags?: string;
  /** Disk space for the module cache, the build cache, a downloaded Go and the binary, as measured. */
  readonly bytesNeeded: number;
  readonly minutes: number;
}

interface BuildOptions {
  readonly program: GoProgram;
  /** Folder to build in, on the same disk as the binary. */
  readonly folder: string;
  readonly target: string;
  /** Further programs of the same module, built along with it. */
  readonly beside?: readonly { readonly package: string; readonly target: string }[];
  readonly log: (line: string) => void;
}

/**
 * Builds a release from source, verified by the Go checksum database. Uses the Go on PATH or one from the Python
 * package index. Returns the path of the binary and removes everything else.
 */
export async function buildGoProgram({ program, folder, target, beside = [], log }: BuildOptions): Promise<string> {
  const { name, version, minutes } = program;
  const all = [...beside, { package: program.package, target }];
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  // The caller holds the lock, so an existing `building-` folder is left over from a killed build.
  for (const entry of readdirSync(folder)) if (entry.startsWith('building-')) removeFolder(join(folder, entry));
  await requireFreeSpace(folder, program.bytesNeeded);
  const room = await mkdtemp(join(folder, 'building-'));
  try {
    const go = await ensureGo(room, log);
    const env = await buildEnvironment(room, go, program);
    log(`building the ${name} ${version} with Go ${go.version}: about ${minutes} min, once`);
    const wait = sayEvery(log, () => `building the ${name}`);
    try {
      await runGo(program, { ...go, env }, { packages: all.map((one) => one.package), folder: room });
    } finally {
      wait.end();
    }
    for (const one of all) renameSync(join(room, 'bin', one.package.split('/').at(-1)!), one.target);
    log(`built the ${name} in ${wait.elapsed()}`);
    return target;
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

/**
 * Sets up temporary caches. Caches that the caller's environment names are used instead. The user's default module cache serves only as a
 * source of modules that it already has. GOPATH is set because the checksum database would otherwise write to the user's home.
 */
async function buildEnvironment(
  room: string,
  { command, env }: GoToolchain,
  { module, version }: GoProgram,
): Promise<Record<string, string>> {
  const { stdout } = await promisify(execFile)(command, ['env', 'GOMODCACHE'], { env, timeout: 30_000 });
  const modulesOfGo = stdout.trim();
  const hasSources = modulesOfGo !== '' && existsSync(join(modulesOfGo, `${module}@v${version}`));
  const folders = {
    GOBIN: join(room, 'bin'),
    GOCACHE: env['GOCACHE'] || join(room, 'build'),
    GOTMPDIR: join(room, 'tmp'),
    GOMODCACHE: env['GOMODCACHE'] || (hasSources ? modulesOfGo : join(room, 'modules')),
    GOPATH: join(room, 'path'),
  };
  for (const folder of Object.values(folders)) mkdirSync(folder, { recursive: true });
  return { ...env, ...folders, CGO_ENABLED: '0' };
}

function runGo(
  { module, version, ldflags = '-s -w' }: GoProgram,
  { command, env }: GoToolchain,
  { packages, folder }: { readonly packages: readonly string[]; readonly folder: string },
): Promise<void> {
  return new Promise((resolve, reject) => {
    const wanted = packages.map((one) => `${module}/${one}@v${version}`);
    const child = spawn(command, ['install', '-ldflags', ldflags, ...wanted], {
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

/** Lowers the build's priority, so that the machine stays usable. */
function beNice(pid: number): void {
  try {
    setPriority(pid, 10);
  } catch {
    // Optional: the build works at any priority.
  }
}

const lastLine = (text: string) => text.trim().split('\n').slice(-1)[0] ?? '';

function removeFolder(folder: string): void {
  rmSync(folder, { recursive: true, force: true, maxRetries: 3 });
}
