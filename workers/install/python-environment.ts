import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { cacheFolder } from '../../host/cache-folder.ts';
import {
  type FoundPython,
  findPython,
  pythonIn,
  type PythonNeeds,
  pythonVariables,
  runInstaller,
} from '../../backends/python/interpreter.ts';
import { completeFile } from '../../backends/python/engine-python.ts';
import { buildAlone } from './go-build.ts';
import { sayEvery } from '../stack/long-wait.ts';

/** W&B's client, and other small programs of ours. */
const pythonForPrograms: PythonNeeds = { oldest: [3, 10], programs: ['python3'] };

/** A virtual environment has a folder of its own, named by the interpreter and its packages. */
interface PythonRequest {
  /** Name for people: `W&B client`. */
  readonly name: string;
  readonly requirements: string;
  readonly log: (line: string) => void;
  readonly needs?: PythonNeeds;
  readonly environment?: Readonly<NodeJS.ProcessEnv>;
  /** Folder of the environment; by default named by the interpreter and its packages. */
  readonly folder?: string;
  /** The lock has all that is installed, whatever the packages themselves ask for. */
  readonly isLockAll?: boolean;
}

/**
 * Python of a virtual environment below the cache with the packages that `requirements` pins: made on first use with uv
 * if available, else with the python3 on PATH and pip, from their configured package index. Throws `ServerUnavailable`
 * with what is missing.
 */
export async function ensurePython(request: PythonRequest): Promise<string> {
  const { name, requirements, log, needs = pythonForPrograms, environment = process.env } = request;
  const pinned = readFileSync(requirements, 'utf8');
  const lock = lockOf(requirements);
  const found = await findPython(needs, environment);
  const digest = createHash('sha256')
    .update(`${found.version}\n${process.arch}\n${pinned}${readFileSync(lock, 'utf8')}`)
    .digest('hex')
    .slice(0, 12);
  const named = `${path.basename(requirements, '.txt')}-${digest}`;
  const folder = request.folder ?? path.join(cacheFolder(environment), 'python', named);
  const python = pythonIn(folder);
  const complete = path.join(folder, completeFile);
  if (existsSync(complete)) return python;
  return buildAlone({ name, folder, log }, async () => {
    if (existsSync(complete)) return python;
    rmSync(folder, { recursive: true, force: true }); // left over from a killed installation
    mkdirSync(path.dirname(folder), { recursive: true, mode: 0o700 });
    log(`installing the ${name} (${pinned.trim().replaceAll('\n', ', ')}) for Python ${found.version}, once`);
    const env = pythonVariables(environment);
    let last = '';
    const wait = sayEvery(log, () => `installing the ${name}${last === '' ? '' : ` (${last})`}`);
    const onLine = (line: string) => {
      if (/^(Collecting|Downloading|Installing|Building|Prepared|Resolved)/.test(line)) last = line.slice(0, 80);
    };
    try {
      await makeEnvironment(found, folder, env);
      const all = request.isLockAll === true ? ['--no-deps'] : [];
      await runInstaller(...installCommand(found, folder, [...all, ...lockedArguments(lock)]), { env, onLine });
    } finally {
      wait.end();
    }
    writeFileSync(complete, '');
    log(`installed the ${name} in ${wait.elapsed()}`);
    return python;
  });
}

/**
 * Lock file beside a requirements file: all dependencies with the digests of their files, so that neither an index nor
 * a proxy can replace them. `python/README.md` says how to regenerate it.
 */
export function lockOf(requirements: string): string {
  return requirements.replace(/\.txt$/, '.lock');
}

/** Arguments for pip and uv that refuse packages outside the lock, or with other digests. */
export function lockedArguments(lock: string): string[] {
  return ['--require-hashes', '-r', lock];
}

async function makeEnvironment(found: FoundPython, folder: string, env: Record<string, string>): Promise<void> {
  if (found.uv) await runInstaller('uv', ['venv', '--quiet', '--python', found.command, folder], { env });
  else await runInstaller(found.command, ['-m', 'venv', folder], { env });
}

/** Command that installs into the environment in `folder`. */
export function installCommand(
  { uv }: Pick<FoundPython, 'uv'>,
  folder: string,
  args: readonly string[],
): [command: string, args: string[]] {
  const python = pythonIn(folder);
  if (uv) return ['uv', ['pip', 'install', '--python', python, ...args]];
  return [python, ['-m', 'pip', 'install', '--disable-pip-version-check', '--no-input', '--progress-bar=off', ...args]];
}
