import { randomBytes, randomUUID } from 'node:crypto';
import { closeSync, fsyncSync, linkSync, mkdirSync, openSync, rmSync, writeSync } from 'node:fs';
import path from 'node:path';
import { secretFileVariable, secretVariable } from '../core/child-environment.ts';
import { RatchetError } from '../core/errors.ts';
import { NotAFile, readRegularSync } from './regular-file.ts';

/**
 * The secret of a project folder. Every user of the machine can reach the ports of its loopback, so servers of the
 * project only answer requests with the content of this file, which no other user can read.
 */

/** Name of the file in messages; `RATCHET_SECRET_FILE` replaces it. */
export const secretFileName = path.join('.ratchet', 'secret');

/** 32 random bytes. A file that another program filled does not look like this. */
const secretShape = /^[\w-]{43}\n?$/;
const bytesMax = 64;

/** Commands and workers check many times a second; a replaced file is noticed after this time. */
const freshMs = 1_000;

type Environment = Readonly<NodeJS.ProcessEnv>;

let find: () => string | null = () => null;

/** The secret of this process's project for requests. Null outside of a project, or in one without a secret yet. */
export function ownSecret(): string | null {
  return find();
}

/** The secret that a supervisor passed to this process. Null for one that was started by hand. */
export function takeSecret(environment: NodeJS.ProcessEnv = process.env): string | null {
  const handed = environment[secretVariable] || null;
  delete environment[secretVariable];
  return handed;
}

/**
 * Makes this process hold the passed secret, or else its folder's as soon as there is one. A removed file changes
 * nothing, a replaced one does.
 */
export function holdSecret(projectFolder: string, environment: NodeJS.ProcessEnv = process.env): void {
  let known = takeSecret(environment);
  if (known !== null) {
    find = () => known;
    return;
  }
  const file = secretFileOf(projectFolder, environment);
  let readAtMs = Number.NEGATIVE_INFINITY;
  find = () => {
    if (known !== null && performance.now() - readAtMs < freshMs) return known;
    readAtMs = performance.now();
    return (known = readSecret(file) ?? known);
  };
}

export function secretFileOf(projectFolder: string, environment: Environment = process.env): string {
  return path.resolve(projectFolder, environment[secretFileVariable] || secretFileName);
}

/**
 * The secret of a project folder; concurrent makers get the same one. Throws `ConfigInvalid` for a file that others may
 * have read.
 */
export function makeSecret(projectFolder: string, environment: Environment = process.env): string {
  const file = secretFileOf(projectFolder, environment);
  const known = readSecret(file);
  if (known !== null) return known;
  writeSecret(file);
  const made = readSecret(file);
  if (made !== null) return made;
  throw new RatchetError('ConfigInvalid', `${file} was removed while it was made. Start this once more.`);
}

function readSecret(file: string): string | null {
  try {
    const text = readRegularSync(file, bytesMax, { links: 'refused', isPrivate: true }).toString('latin1');
    if (secretShape.test(text)) return text.trim();
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    if (error instanceof NotAFile) throw refused(file, error.found, error);
    throw refused(file, `nothing that can be read (${(error as NodeJS.ErrnoException).code ?? String(error)})`, error);
  }
  throw refused(file, 'another content');
}

/** Links a complete file, never over an existing one: the second writer reads the first one's. */
function writeSecret(file: string): void {
  mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 });
  const temporary = `${file}.${randomUUID()}.tmp`;
  const handle = openSync(temporary, 'wx', 0o600);
  try {
    writeSync(handle, `${randomBytes(32).toString('base64url')}\n`);
    fsyncSync(handle);
    linkSync(temporary, file);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  } finally {
    closeSync(handle);
    rmSync(temporary, { force: true });
  }
}

function refused(file: string, found: string, cause?: unknown): RatchetError {
  return new RatchetError(
    'ConfigInvalid',
    `${file}: expected the secret of this project's servers, in a file of this user that nobody else can read (mode 600, no link), found ${found}. Remove it, and start what runs here again: a new one is made.`,
    { cause },
  );
}
