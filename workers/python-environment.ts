import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { promisify } from 'node:util';
import { cacheFolder } from '../backends/cache-folder.ts';
import { environmentForAll, environmentForPython, selectEnvironment } from '../core/child-environment.ts';
import { RatchetError } from '../core/errors.ts';
import { buildAlone } from './go-build.ts';

/** The oldest Python that the pinned packages run on. */
const pythonOldest = { major: 3, minor: 9 };
const installTimeoutMs = 15 * 60_000;

/** A virtual environment lies in a folder of its own, named by the interpreter and what is in it. */
export interface PythonRequest {
  /** For people: `W&B client`. */
  readonly name: string;
  /** A requirements file with pinned versions. */
  readonly requirements: string;
  readonly log: (line: string) => void;
  readonly environment?: Readonly<NodeJS.ProcessEnv>;
}

/**
 * The Python of a virtual environment below the cache that has what `requirements` pins: made on first use with uv where it
 * is there, else with the python3 on PATH and pip, from the package index they are configured for. Throws
 * `ServerUnavailable` with what is missing.
 */
export async function ensurePython(request: PythonRequest): Promise<string> {
  const { name, requirements, log, environment = process.env } = request;
  const env = selectEnvironment([...environmentForAll, ...environmentForPython], environment);
  const pinned = readFileSync(requirements, 'utf8');
  const found = await findPython(env, environment['RATCHET_PYTHON']);
  const digest = createHash('sha256').update(`${found.version}\n${process.arch}\n${pinned}`).digest('hex').slice(0, 12);
  const folder = path.join(cacheFolder(environment), 'python', `${path.basename(requirements, '.txt')}-${digest}`);
  const python = path.join(folder, 'bin', 'python');
  const complete = path.join(folder, 'complete');
  if (existsSync(complete)) return python;
  return buildAlone({ name, folder, log }, async () => {
    if (existsSync(complete)) return python;
    rmSync(folder, { recursive: true, force: true }); // of an installation that was killed
    mkdirSync(path.dirname(folder), { recursive: true, mode: 0o700 });
    const started = performance.now();
    log(`installing the ${name} (${pinned.trim().replaceAll('\n', ', ')}) for Python ${found.version}, once`);
    if (found.uv) {
      await run('uv', ['venv', '--quiet', '--python', found.command, folder], env);
      await run('uv', ['pip', 'install', '--quiet', '--python', python, '-r', requirements], env);
    } else {
      await run(found.command, ['-m', 'venv', folder], env);
      const quiet = ['--quiet', '--disable-pip-version-check', '--no-input'];
      await run(python, ['-m', 'pip', 'install', ...quiet, '-r', requirements], env);
    }
    writeFileSync(complete, '');
    log(`installed the ${name} in ${Math.round((performance.now() - started) / 1000)} s`);
    return python;
  });
}

async function findPython(
  env: Record<string, string>,
  named: string | undefined,
): Promise<{ readonly command: string; readonly version: string; readonly uv: boolean }> {
  const command = named || 'python3';
  const uv = await answers('uv', ['--version'], env);
  const version = await answers(command, ['-c', 'import sys; print("%d.%d.%d" % sys.version_info[:3])'], env);
  const [major = 0, minor = 0] = (version ?? '').trim().split('.').map(Number);
  const isNewEnough = major > pythonOldest.major || (major === pythonOldest.major && minor >= pythonOldest.minor);
  if (version !== null && isNewEnough) return { command, version: version.trim(), uv: uv !== null };
  const wanted = `Python ${pythonOldest.major}.${pythonOldest.minor} or newer`;
  const got = version === null ? `${command} does not run here` : `${command} is ${version.trim()}`;
  throw new RatchetError(
    'ServerUnavailable',
    `${wanted} is needed, but ${got}. Install it (apt install python3-venv, brew install python), or name one with RATCHET_PYTHON.`,
  );
}

async function answers(command: string, args: readonly string[], env: Record<string, string>): Promise<string | null> {
  try {
    return (await promisify(execFile)(command, [...args], { env, timeout: 60_000 })).stdout;
  } catch {
    return null; // not there, or nothing that runs
  }
}

async function run(command: string, args: readonly string[], env: Record<string, string>): Promise<void> {
  try {
    await promisify(execFile)(command, [...args], { env, timeout: installTimeoutMs, maxBuffer: 16 * 1024 * 1024 });
  } catch (cause) {
    const said = (cause as { stderr?: string }).stderr?.trim().split('\n').slice(-3).join(' ') || String(cause);
    throw new RatchetError('ServerUnavailable', `${command} ${args[0] ?? ''} ${args[1] ?? ''} failed: ${said}`, {
      cause,
    });
  }
}
