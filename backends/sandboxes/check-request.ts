import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import type { SandboxCommand, SandboxProvider, SandboxRequest } from './types.ts';

/** Processes and threads of a sandbox at once, where nothing is said: more than a build in parallel needs. */
export const processesUsual = 256;
const namePattern = /^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$/;
const variablePattern = /^[A-Za-z_][A-Za-z0-9_]*$/;

/** Refuses a request that its provider cannot keep, before anything is made. */
export function checkRequest(
  request: SandboxRequest,
  { kind, traits }: Pick<SandboxProvider, 'kind' | 'traits'>,
): void {
  const wrong = (what: string, expected: string, came: unknown): never => {
    throw new RatchetError(
      'SandboxRefused',
      `A sandbox of ${kind}: ${what}: expected ${expected}, got ${JSON.stringify(came) ?? 'nothing'}.`,
    );
  };
  const { name, network, limits, files = [], folders = [], env = {}, snapshot, route } = request;
  if (!namePattern.test(name)) wrong('name', '1 to 63 of a-z, 0-9 and - (not at its ends)', name);
  for (const [limit, value] of Object.entries(limits))
    if (!(Number.isFinite(value) && value > 0)) wrong(`limits.${limit}`, 'a number above 0', value);
  if (network === 'route' && !traits.isolatesNetwork)
    wrong('network', '"open": this kind shares the network of its host', network);
  if (snapshot && !traits.snapshots) wrong('snapshot', 'none: this kind cannot begin from one', snapshot.key);
  if (folders.length > 0 && !traits.showsFolders)
    wrong('folders', 'none: this kind shows no folder of this machine', folders);
  for (const folder of folders)
    if (!isShowable(folder)) wrong('folders', 'an absolute path, not of the system', folder);
  for (const file of files) if (!isInside(file.path)) wrong('files', 'a path inside the work folder', file.path);
  checkVariables(env, wrong);
  if (route && !path.isAbsolute(route.socket)) wrong('route.socket', 'an absolute path', route.socket);
  if (route && !(Number.isInteger(route.port) && route.port > 0 && route.port < 65_536))
    wrong('route.port', 'a port from 1 to 65535', route.port);
}

export function checkCommand(command: SandboxCommand, kind: string): void {
  const wrong = (what: string, expected: string, came: unknown): never => {
    throw new RatchetError(
      'SandboxRefused',
      `A command in a sandbox of ${kind}: ${what}: expected ${expected}, got ${JSON.stringify(came) ?? 'nothing'}.`,
    );
  };
  const { argv, env = {}, timeoutS, outputBytesMax } = command;
  if (argv.length === 0 || argv[0] === '') wrong('argv', 'a program and its arguments', argv);
  if (argv.some((word) => word.includes('\0'))) wrong('argv', 'text without a zero byte', argv);
  checkVariables(env, wrong);
  if (!(Number.isFinite(timeoutS) && timeoutS > 0)) wrong('timeoutS', 'seconds above 0', timeoutS);
  if (!(Number.isInteger(outputBytesMax) && outputBytesMax >= 0)) wrong('outputBytesMax', 'bytes', outputBytesMax);
}

type Wrong = (what: string, expected: string, came: unknown) => never;

function checkVariables(env: Readonly<Record<string, string>>, wrong: Wrong): void {
  for (const [variable, value] of Object.entries(env)) {
    if (!variablePattern.test(variable)) wrong('env', 'names of letters, digits and _', variable);
    if (value.includes('\0')) wrong(`env.${variable}`, 'text without a zero byte', value);
  }
}

function isInside(file: string): boolean {
  const parts = file.split('/');
  return file !== '' && !file.includes('\0') && parts.every((part) => part !== '' && part !== '.' && part !== '..');
}

/** Not the root, and nothing that a sandbox has of its own. */
function isShowable(folder: string): boolean {
  const clean = path.resolve(folder);
  const [first = ''] = clean.split('/').filter(Boolean);
  return (
    path.isAbsolute(folder) &&
    first !== '' &&
    clean !== '/tmp' &&
    !['proc', 'sys', 'dev', 'run', 'work', 'etc'].includes(first)
  );
}
