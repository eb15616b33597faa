import { spawn } from 'node:child_process';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { environmentForAll, environmentForPython, selectEnvironment } from '../../core/child-environment.ts';
import { RatchetError } from '../../core/errors.ts';
import { present } from '../../core/present.ts';
import { answerOf, childPatience, watchChild } from '../../host/child-progress.ts';

/** Large packages may download slowly, with no output and almost no CPU time. */
const installStandstillMs = 15 * 60_000;

/** Accepted interpreters, [major, minor]. */
export interface PythonNeeds {
  readonly oldest: readonly [number, number];
  /** First version that is not accepted. */
  readonly before?: readonly [number, number];
  /** Programs on PATH, the first suitable one is taken. RATCHET_PYTHON names another in their place. */
  readonly programs: readonly string[];
}

/** Versions that verifiers 0.3 and 0.4 support. */
export const pythonForVerifiers: PythonNeeds = {
  oldest: [3, 11],
  before: [3, 14],
  programs: ['python3.13', 'python3.12', 'python3.11', 'python3'],
};

export interface FoundPython {
  /** Its command; for uv without an interpreter here, the versions that it may install: `>=3.11,<3.14`. */
  readonly command: string;
  readonly version: string;
  /** uv is on PATH: it makes environments and installs, replacing venv and pip. */
  readonly uv: boolean;
}

/** Our variables that Python and its installers see: access to the package index, no other credentials. */
export function pythonVariables(environment: Readonly<NodeJS.ProcessEnv>): Record<string, string> {
  return selectEnvironment([...environmentForAll, ...environmentForPython], environment);
}

/**
 * An interpreter that can make virtual environments. Throws `ServerUnavailable` with the candidates and what to
 * install.
 */
export async function findPython(
  needs: PythonNeeds,
  environment: Readonly<NodeJS.ProcessEnv> = process.env,
): Promise<FoundPython> {
  const env = pythonVariables(environment);
  const named = environment['RATCHET_PYTHON'];
  const programs = named ? [named] : needs.programs;
  const uv = (await answerOf('uv', ['--version'], env)) !== null;
  const looked: Looked[] = [];
  for (const program of programs) {
    const found = await look(program, env);
    if (found && isWithin(found.version, needs) && (uv || found.hasVenv))
      return { command: program, version: found.version, uv };
    looked.push({ program, found });
  }
  const spelled = range(needs);
  if (uv && !named) return { command: spelled, version: spelled, uv };
  throw noPython(looked, needs, named !== undefined && named !== '');
}

interface Interpreter {
  readonly version: string;
  /** Debian's python3 cannot make virtual environments until python3-venv is installed. */
  readonly hasVenv: boolean;
}

interface Looked {
  readonly program: string;
  /** null = it does not run here. */
  readonly found: Interpreter | null;
}

const aboutItself =
  'import sys, importlib.util as u; print("%d.%d.%d" % sys.version_info[:3], int(bool(u.find_spec("venv") and u.find_spec("ensurepip"))))';

async function look(program: string, env: Record<string, string>): Promise<Interpreter | null> {
  const [version = '', hasVenv] = ((await answerOf(program, ['-c', aboutItself], env)) ?? '').trim().split(' ');
  return /^\d+\.\d+\.\d+$/.test(version) ? { version, hasVenv: hasVenv === '1' } : null;
}

function isWithin(version: string, { oldest, before }: PythonNeeds): boolean {
  const [major = 0, minor = 0] = version.split('.').map(Number);
  const atLeast = ([a, b]: readonly [number, number]) => major > a || (major === a && minor >= b);
  return atLeast(oldest) && (before === undefined || !atLeast(before));
}

function range({ oldest, before }: PythonNeeds): string {
  return `>=${oldest.join('.')}${before === undefined ? '' : `,<${before.join('.')}`}`;
}

function noPython(looked: readonly Looked[], needs: PythonNeeds, isNamed: boolean): RatchetError {
  const { oldest, before } = needs;
  const wanted = `Python ${oldest.join('.')} or newer${before === undefined ? '' : `, older than ${before.join('.')},`}`;
  const withoutVenv = looked.find(({ found }) => found !== null && isWithin(found.version, needs));
  if (withoutVenv?.found) {
    const minor = withoutVenv.found.version.split('.').slice(0, 2).join('.');
    return new RatchetError(
      'ServerUnavailable',
      `${withoutVenv.program} (${withoutVenv.found.version}) cannot make virtual environments: its venv module, or pip in it, is missing. Install it (Debian, Ubuntu: apt install python${minor}-venv), or uv (https://docs.astral.sh/uv), or name another Python with RATCHET_PYTHON.`,
    );
  }
  const tried = looked.map(({ program, found }) =>
    found === null ? `${program} does not run here` : `${program} is ${found.version}`,
  );
  const named = isNamed ? ' (named by RATCHET_PYTHON)' : '';
  return new RatchetError(
    'ServerUnavailable',
    `${wanted} is needed, but ${tried.join(', ')}${named}. Install one (apt install python3 python3-venv, brew install python@3.12, uv), or name one with RATCHET_PYTHON.`,
  );
}

export function pythonIn(folder: string): string {
  return `${folder}/bin/python`;
}

interface InstallerRun {
  readonly env: Record<string, string>;
  readonly cwd?: string;
  /** Called with each line of output. */
  readonly onLine?: (line: string) => void;
}

export class InstallerFailed extends RatchetError {
  readonly output: string;
  /** The lines that give the reason, whole. */
  readonly reason: string;
  constructor(message: string, { output, reason }: { readonly output: string; readonly reason: string }) {
    super('ServerUnavailable', message);
    this.output = output;
    this.reason = reason;
  }
}

/** Runs venv, pip or uv to its end; throws `InstallerFailed` with its reason. */
export async function runInstaller(
  command: string,
  args: readonly string[],
  { env, cwd, onLine }: InstallerRun,
): Promise<void> {
  const [printed, failed]: [string[], string[]] = [[], []];
  const child = spawn(command, args, {
    env,
    ...present({ cwd }),
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const watch = watchChild(child.pid, { ...childPatience(), standstillMs: installStandstillMs });
  let givenUp: string | null = null;
  void watch.over.then((why) => {
    givenUp = why;
    child.kill();
  });
  for (const [stream, lines] of [
    [child.stdout, printed],
    [child.stderr, failed],
  ] as const) {
    // prettier-ignore
    createInterface(stream).on('line', (line) => {
      lines.push(line);
      watch.heard();
      onLine?.(line.trim());
    });
  }
  const ended = await new Promise<string | null>((resolve) => {
    child.once('error', (error) => resolve(error.message));
    child.once('close', (code, signal) =>
      resolve(code === 0 ? null : `it ended with ${signal ?? `exit code ${code}`}`),
    );
  });
  watch.end();
  if (ended === null) return;
  const said = reasonIn(printed, failed) || ended;
  const reason = givenUp === null ? said : `${said} (${givenUp as string})`;
  const output = [...printed, ...failed].join('\n');
  throw new InstallerFailed(`${reason}\n(${path.basename(command)} ${args.slice(0, 3).join(' ')} failed)`, {
    output,
    reason,
  });
}

/** A failing build may print megabytes. */
const reasonLinesMax = 60;

/**
 * Why pip or uv failed: from the first line of an error to the end, preceded by pip's account of a conflict, which it
 * prints elsewhere. uv explains itself in the following lines; pip's advice about pip itself is left out.
 */
function reasonIn(printed: readonly string[], failed: readonly string[]): string {
  const isError = (line: string) => /^\s*(?:error\b|×|╰)/i.test(line);
  const plain = failed.filter((line) => !/^\s*(?:\[notice\]|WARNING: (?:Running pip as|You are using pip|There was an error checking))|ResolutionImpossible: for help/.test(line)); // prettier-ignore
  const first = plain.findIndex(isError);
  const conflict = printed.findIndex((line) => line.startsWith('The conflict is caused by'));
  const advice = printed.findIndex((line, i) => i > conflict && line.startsWith('To fix this'));
  const account = conflict < 0 ? [] : printed.slice(conflict, advice < 0 ? undefined : advice);
  const errors = first < 0 ? plain.slice(-4) : plain.slice(first);
  const lines = [...errors, ...account].filter((line) => line.trim() !== '');
  if (lines.length === 0) return printed.filter((line) => line.trim() !== '').slice(-4).join('\n').trim(); // prettier-ignore
  const shown = lines.slice(0, reasonLinesMax);
  return [...shown, ...(lines.length > shown.length ? [`… and ${lines.length - shown.length} more lines`] : [])].join('\n').trim(); // prettier-ignore
}
