import { inTemporaryFolder } from '../../../host/temporary-folder.ts';
import { spawn, type ChildProcess } from 'node:child_process';
import { availableParallelism } from 'node:os';
import type { Readable, Writable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import PQueue from 'p-queue';
import { RatchetError } from '../../../core/errors.ts';
import { answerOf } from '../../../host/child-progress.ts';
import {
  anyUser,
  dyingTogether,
  inNamespaces,
  killWhole,
  namespacesNeeded,
  systemPath,
} from '../../sandboxes/isolated-child.ts';
import { requireKnownOptions } from '../known-options.ts';
import { grants, requireGrant } from '../../../host/grants.ts';
import { trustedInterpreter } from '../../../host/trusted-files.ts';

/** Runs a model's code in a child process of its own: see sandbox.py. */

export interface PythonOptions {
  /**
   * `namespaces`: no network, no other process, the system read-only, none of the user's files, and an empty folder to
   * write in. `none`: only limits of time and memory; the code has this process's access.
   */
  readonly sandbox: 'namespaces' | 'none';
  /** Time limit of one cell in seconds. */
  readonly timeoutS: number;
  /** Address space of the interpreter, MiB. */
  readonly memoryMb: number;
  /** Kept characters of output. */
  readonly outputCharsMax: number;
  /** The interpreter: a command or a path. */
  readonly python: string;
}

export interface Python {
  /**
   * Runs cells in one namespace and returns the output of the last, with its error if it failed. Earlier cells are run
   * again for their definitions; no state survives between calls, and equal cells give equal results as far as they are
   * deterministic. Rejects when the sandbox itself is unavailable.
   */
  run(cells: readonly string[]): Promise<string>;
}

export const pythonDefaults: PythonOptions = {
  sandbox: 'namespaces',
  timeoutS: 5,
  memoryMb: 512,
  outputCharsMax: 2_000,
  python: 'python3',
};

/** The answer of a cell without lasting effect: it is not run again before the next. */
export function hadNoEffect(answer: string): boolean {
  return answer.includes(overTime) || answer.includes(ended) || answer.includes(tooMuch);
}

const overTime = 'Error: the code ran longer than';
const ended = 'Error: the interpreter ended';
const tooMuch = 'Error: the code printed more than';

/** Time limit for a child's start, on a busy machine. */
const startMs = 60_000;
/** Bytes read of a child's output before it is stopped. */
const outputBytesMax = 1024 * 1024;
const diskBytes = 64 * 1024 * 1024;
const fileBytes = 16 * 1024 * 1024;
/** An ended child has closed its pipes, unless a process that left its group holds them. */
const closeGraceMs = 500;
/** Exit code of sandbox.py after a complete run. */
const doneCode = 33;

/** Children at once: more would only wait for one another. */
const queue = new PQueue({ concurrency: availableParallelism() });

let isSandboxWanted = false;

/** Whether an environment in this process requested the sandbox, available or not: for `ratchet doctor`. */
export function sandboxIsWanted(): boolean {
  return isSandboxWanted;
}

/** Checks once whether the sandbox is available here. Throws ConfigInvalid with the missing part and advice. */
export async function openPython(given: Partial<PythonOptions> = {}): Promise<Python> {
  requireKnownOptions<PythonOptions>('openPython(…)', given, {
    sandbox: true,
    timeoutS: true,
    memoryMb: true,
    outputCharsMax: true,
    python: true,
  });
  const options = { ...pythonDefaults, ...given };
  if (options.sandbox === 'namespaces') isSandboxWanted = true;
  else requireGrant(grants.noSandbox, 'Model-written Python without a sandbox (sandbox = "none")');
  const python = await findPython(trustedInterpreter(options.python, 'The interpreter'));
  const runAs =
    (isOtherUser: boolean): Python['run'] =>
    (cells) =>
      queue.add(() => runInFolder({ python, isOtherUser }, cells, options));
  // Process limits do not bind root, even in a namespace of its own: it becomes another user if it may.
  const mayBeOther = options.sandbox === 'namespaces' && process.getuid?.() === 0;
  if (mayBeOther && (await works(runAs(true)))) return { run: runAs(true) };
  try {
    await tryOut(runAs(false));
  } catch (cause) {
    throw new RatchetError('ConfigInvalid', `${unavailable(options)}\n  ${(cause as Error).message.trim()}`, {
      cause,
    });
  }
  return { run: runAs(false) };
}

function works(run: Python['run']): Promise<boolean> {
  return tryOut(run).then(
    () => true,
    () => false,
  );
}

/** Also imports a module: another user may not be able to read the library's folder. */
async function tryOut(run: Python['run']): Promise<void> {
  const answer = await run(['import decimal\nprint(6 * 7)']);
  if (answer.trim() !== '42') throw new Error(`print(6 * 7) gave ${JSON.stringify(answer)}`);
}

interface Runner {
  readonly python: string;
  /** Whether each child becomes a user of its own, who owns nothing. */
  readonly isOtherUser: boolean;
}

async function runInFolder(runner: Runner, cells: readonly string[], options: PythonOptions): Promise<string> {
  if (options.sandbox === 'namespaces') return runChild(runner, cells, options, '/');
  return inTemporaryFolder('python', async (folder) => {
    return await runChild(runner, cells, options, folder);
  });
}

function unavailable({ sandbox }: PythonOptions): string {
  if (sandbox === 'none') return 'Model-written Python cannot be run:';
  return (
    `Model-written code runs in a sandbox only, and there is none here: expected ${namespacesNeeded}. ` +
    'Where nothing on the machine is worth protecting, args = { sandbox = "none" } runs it with limits of time and memory alone. What came instead:'
  );
}

/** The real interpreter: the one on PATH may be a script that chooses one. */
async function findPython(command: string): Promise<string> {
  const answer = await answerOf(command, ['-c', 'import sys; print(sys.executable)'], process.env);
  if (answer !== null) return answer.trim();
  throw new RatchetError(
    'ConfigInvalid',
    `Expected a Python 3.8 or newer as ${JSON.stringify(command)}, to run model-written code; it cannot be started. Install python3, or name another with args = { python = "…" }.`,
  );
}

function commandFor({ python, isOtherUser }: Runner, { sandbox }: PythonOptions): [string, ...string[]] {
  const interpreter = [python, '-s', '-B', '-u', fileURLToPath(new URL('sandbox.py', import.meta.url))];
  const around = sandbox === 'namespaces' ? inNamespaces({ isOtherUser }) : dyingTogether();
  return [...around, ...interpreter] as [string, ...string[]];
}

async function runChild(
  runner: Runner,
  cells: readonly string[],
  options: PythonOptions,
  folder: string,
): Promise<string> {
  const { timeoutS, memoryMb, outputCharsMax } = options;
  const [command, ...words] = commandFor(runner, options);
  const child = spawn(command, words, {
    cwd: folder,
    detached: true,
    env: childEnvironment,
    stdio: ['pipe', 'pipe', 'pipe', 'pipe'],
  });
  const limits = {
    cellS: timeoutS,
    cpuS: Math.ceil((cells.length + 1) * timeoutS + 5),
    memoryBytes: memoryMb * 1024 * 1024,
    fileBytes,
    diskBytes,
  };
  const [input, output, errors, marks] = child.stdio as unknown as [Writable, Readable, Readable, Readable];
  input.on('error', () => undefined); // the end of a child that did not start is handled below
  input.end(
    JSON.stringify({
      cells,
      limits,
      isolate: options.sandbox === 'namespaces',
      user: runner.isOtherUser ? anyUser() : null,
    }),
  );

  const patience = new Patience(child, startMs);
  let stage = '';
  marks.on('data', (bytes: Buffer) => {
    // Each once and in order: the code can write here as well, but gains no time by it.
    for (const mark of bytes.toString()) {
      if (mark !== (stage === '' ? 's' : stage === 's' ? 'c' : null)) continue;
      stage = mark;
      // The child stops itself in time; code that prevents this is stopped here.
      patience.restart((stage === 'c' ? timeoutS : timeoutS * cells.length) * 1000 + 2_000);
    }
  });
  const text = new Beginning(outputBytesMax, () => patience.stop());
  output.on('data', (bytes: Buffer) => text.add(bytes));
  const trouble = new Beginning(4_096, () => undefined);
  errors.on('data', (bytes: Buffer) => trouble.add(bytes));
  const { code, signal } = await endOf(child).finally(() => patience.end());

  if (stage === '') throw new Error(trouble.text() || `the child ended with ${signal ?? `code ${code}`}`);
  const said = shorten(text.text(), outputCharsMax);
  const with_ = (error: string): string => (said === '' ? error : `${said}\n${error}`);
  if (stage !== 'c') return `${ended} while it ran the calls before again.`;
  if (text.isOver) return with_(`${tooMuch} ${outputBytesMax} bytes and was stopped.`);
  if (patience.isOver) return with_(`${overTime} ${timeoutS} s and was stopped.`);
  if (code !== doneCode) return with_(`${ended} (${signal ?? `exit code ${code}`}).`);
  return said === '' ? '(no output)' : said;
}

/** Contains nothing of ours: no user name, no key, no proxy. */
const childEnvironment = {
  PATH: systemPath,
  HOME: '/work',
  LANG: 'C.UTF-8',
  PYTHONHASHSEED: '0',
  OMP_NUM_THREADS: '1',
  OPENBLAS_NUM_THREADS: '1',
};

/** Bounds the wait for pipes held by a process that outlives the child. */
function endOf(child: ChildProcess): Promise<{ code: number | null; signal: NodeJS.Signals | null }> {
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('exit', (code, signal) => {
      const end = (): void => {
        clearTimeout(timer);
        for (const stream of child.stdio) stream?.destroy();
        resolve({ code, signal });
      };
      const timer = setTimeout(end, closeGraceMs);
      child.once('close', end);
    });
  });
}

/** Kills a child, its children and its whole group when it takes too long. */
class Patience {
  isOver = false;
  readonly #child: ChildProcess;
  #timer: NodeJS.Timeout;

  constructor(child: ChildProcess, ms: number) {
    this.#child = child;
    this.#timer = setTimeout(() => this.#lose(), ms);
  }

  restart(ms: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#lose(), ms);
  }

  stop(): void {
    killWhole(this.#child);
  }

  /** The child has ended; the rest of its group is killed. */
  end(): void {
    clearTimeout(this.#timer);
    this.stop();
  }

  #lose(): void {
    this.isOver = true;
    this.stop();
  }
}

class Beginning {
  isOver = false;
  readonly #parts: Buffer[] = [];
  readonly #max: number;
  readonly #onOver: () => void;
  #bytes = 0;

  constructor(max: number, onOver: () => void) {
    this.#max = max;
    this.#onOver = onOver;
  }

  add(bytes: Buffer): void {
    if (this.isOver) return;
    this.#parts.push(bytes);
    this.#bytes += bytes.length;
    if (this.#bytes <= this.#max) return;
    this.isOver = true;
    this.#onOver();
  }

  text(): string {
    return Buffer.concat(this.#parts).subarray(0, this.#max).toString();
  }
}

/** Keeps the beginning and the end, where an error describes itself. */
function shorten(text: string, charsMax: number): string {
  const whole = text.trimEnd();
  if (whole.length <= charsMax) return whole;
  const half = Math.floor(charsMax / 2);
  return `${whole.slice(0, half)}\n… (${whole.length - 2 * half} characters left out) …\n${whole.slice(-half)}`;
}
