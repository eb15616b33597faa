import { readFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import type { WorkflowHandle } from '@temporalio/client';
import { RatchetError } from '../../core/errors.ts';
import {
  type Person,
  personOfKey,
  personOfLogin,
  refusalOf,
  type RunOwner,
  type Roles,
  type Wish,
} from '../../core/roles.ts';
import { nameOfUser } from '../../host/file-owners.ts';
import type { RunPlace } from '../../runs/run-access.ts';
import { sha256 } from '../../store/file-store.ts';
import { askStatus } from './ask-status.ts';

const fileHere = 'roles.toml';

/** The roles of `RATCHET_ROLES`, else of `roles.toml` in the project's folder; null without either: all may do all. */
export async function rolesHere(projectFolder = process.cwd()): Promise<Roles | null> {
  const given = process.env['RATCHET_ROLES'];
  const file = given === undefined || given === '' ? fileHere : given;
  try {
    const text = await readFile(path.resolve(projectFolder, file), 'utf8');
    // Imported where there is a file: a command's start does not wait for it.
    return (await import('../../config/roles/parse-roles-file.ts')).parseRolesFile(text, file);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === undefined || error instanceof RatchetError) throw error;
    if (code === 'ENOENT' && file === fileHere) return null;
    throw new RatchetError(
      'ConfigInvalid',
      `${file}: expected a file of roles (RATCHET_ROLES, else ${fileHere} here), but it cannot be read (${code}). Nobody may steer until it can.`,
      { cause: error },
    );
  }
}

/** The user of this process at its operating system, which no variable changes: `ann@laptop`. */
export function loginHere(): string {
  return `${nameOfUser() || `user ${process.getuid?.() ?? '?'}`}@${os.hostname()}`;
}

/** Who asks in this process: whose key `RATCHET_KEY` is, else its login. Throws `NotAllowed` for a key of nobody. */
export function personHere(roles: Roles): Person {
  const key = process.env['RATCHET_KEY'];
  if (key === undefined || key === '') return personOfLogin(roles, loginHere());
  const found = personWithKey(roles, key);
  if (found !== null) return found;
  throw new RatchetError(
    'NotAllowed',
    `RATCHET_KEY is the key of nobody in ${roles.file}. Without it you are ${personOfLogin(roles, loginHere()).name}.`,
  );
}

export function personWithKey(roles: Roles, key: string): Person | null {
  return personOfKey(roles, sha256(Buffer.from(key)));
}

/**
 * The name that a client of this process tells Temporal, which keeps it with each update, cancellation and termination:
 * `ratchet ann@laptop 4711`, and `ratchet ann 4711` for somebody who had the key of ann.
 */
export async function identityHere(as?: Person): Promise<string> {
  const hasKey = (process.env['RATCHET_KEY'] ?? '') !== '';
  const roles = hasKey && as === undefined ? await rolesHere() : null;
  const person = as ?? (roles === null ? null : personHere(roles));
  return `ratchet ${person?.name ?? loginHere()} ${process.pid}`;
}

export interface Asking {
  /** Somebody else than who runs this process, whose key was checked. */
  readonly as?: Person | undefined;
  /** Where `roles.toml` is looked for; default: the working directory. */
  readonly projectFolder?: string | undefined;
}

/** Finds who owns a run; null where that is not known. Called only where there is a file of roles. */
type FindOwner = () => Promise<RunOwner | null>;

/** What is asked for. `isOrBegins`: a run that nobody is known to own is begun by it, and is one's own. */
type Asked =
  | { readonly of: 'run'; readonly run: string; readonly owner: FindOwner; readonly isOrBegins?: true }
  | { readonly of: 'own' }
  | { readonly of: 'all' };

/** Throws `NotAllowed` unless the file of roles lets the person do `what`. Where there is no file everybody may. */
export async function requireRole(what: string, asked: Asked, { as, projectFolder }: Asking = {}): Promise<void> {
  const roles = await rolesHere(projectFolder);
  if (roles === null) return;
  const person = as ?? personHere(roles);
  const refusal = refusalOf(roles, person, await wishOf(what, asked));
  if (refusal !== null) throw new RatchetError('NotAllowed', refusal);
}

async function wishOf(what: string, asked: Asked): Promise<Wish> {
  if (asked.of !== 'run') return { of: asked.of, what };
  const owner = await asked.owner();
  return owner === null && asked.isOrBegins ? { of: 'own', what } : { of: 'run', run: asked.run, what, owner };
}

/** A run that does not answer within this time has no owner that is known. */
const answerWithinMs = 10_000;

/** Who owns a run that is open, or that Temporal still knows. */
export const ownerOf =
  (handle: WorkflowHandle): FindOwner =>
  async () =>
    (await askStatus(handle, answerWithinMs))?.owner ?? null;

/** Who owns a run, from its folder. */
export const ownerInFolder =
  (run: RunPlace): FindOwner =>
  async () =>
    (await import('../../runs/changes.ts')).storedOwner(run);
