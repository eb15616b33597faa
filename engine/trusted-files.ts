import { readFileSync, realpathSync, type Stats, statSync } from 'node:fs';
import { userInfo } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { trustedRootsVariable } from '../core/child-environment.ts';
import { RatchetError } from '../core/errors.ts';

/**
 * Whose files a worker reads as configs and runs as code. Our own Temporal server listens on the loopback and asks nobody who they are:
 * any user of the machine may tell its workers to run something. So there they take only what nobody but their own user could have
 * put in its place, and what lies where that user said so. The supervisor of our own server says so in `RATCHET_TRUSTED_ROOTS`; without
 * the variable everything may be named, as at a command line or with a server that knows its clients.
 *
 * Gives the file's real path, which is the one to open: no link on the way to it matters then. What is not there is passed through,
 * for whoever opens it to say so.
 */
export function trustedFile(file: string, what: string, environment: Environment = process.env): string {
  const roots = trustedRoots(environment);
  if (roots === null) return file;
  const real = realOr(file, null);
  if (real === null) return file;
  const root = roots.find((one) => isWithin(one, real));
  if (root === undefined) throw refused(file, what, 'lies outside of what was named there', whereToPut(roots, real));
  const owners = ownersOf(root, roots[0]!);
  for (const place of wayTo(real, root)) {
    const wrong = whatOthersCan(place, owners);
    if (wrong !== null) throw refused(file, what, ...wrong);
  }
  return real;
}

/** Whether everything may be named here: then a file's text may come from whoever names it, as well. */
export function readsAnything(environment: Environment = process.env): boolean {
  return trustedRoots(environment) === null;
}

/**
 * The same for an interpreter, which may also be the system's: a Python that nobody but root can have put there. A name without a slash
 * is looked for in this process's own PATH, which nobody else sets.
 */
export function trustedInterpreter(command: string, what: string, environment: Environment = process.env): string {
  if (trustedRoots(environment) === null) return command;
  if (!command.includes('/')) {
    if (isPythons(command)) return command;
    throw refused(command, what, 'is no name of a Python', 'name it python3, or by its path');
  }
  const file = path.resolve(command);
  const real = realOr(file, null);
  const isSystems = real !== null && isPythons(path.basename(real)) && isRootsAlone(real);
  // In a virtual environment it is a link, and it is the place of the link that makes the environment.
  if (isSystems && isRootsAlone(path.dirname(file))) return command;
  return path.join(trustedFile(path.dirname(file), what, environment), path.basename(file));
}

function isPythons(name: string): boolean {
  return /^(?:python|pypy)[\d.]*$/.test(name);
}

/** What is no file, and may be asked for only where this user did so. */
export const grants = {
  noSandbox: 'sandbox-none',
  /** Before the digest of an environment in Python and its arguments. */
  environment: 'environment ',
} as const;

/** Refuses what a worker of our own server was asked for and nobody granted. */
export function requireGrant(grant: string, what: string, environment: Environment = process.env): void {
  const [projectFolder] = rootsIn(environment);
  if (projectFolder === undefined || grantedLines(projectFolder).includes(grant)) return;
  throw new RatchetError(
    'ConfigInvalid',
    `${what} is not taken from Temporal: the server of this folder asks nobody who they are. A run file that says so grants it once it is named at a command line of yours: npx ratchet train FILE.`,
  );
}

/**
 * Lines of what this user's own commands named: absolute paths of files and folders outside of the project, and `grants`. Written by
 * commands, read by workers.
 */
export function grantedAt(projectFolder: string): string {
  return path.join(projectFolder, '.ratchet', 'granted');
}

/** Whether workers of a project take a file without anybody naming it. */
export function isOfProject(file: string, projectFolder: string): boolean {
  const real = realOr(file, file);
  return [realOr(projectFolder, projectFolder), ...ownFolders].some((root) => isWithin(root, real));
}

type Environment = Readonly<NodeJS.ProcessEnv>;

/** What comes with Ratchet and is meant to be named. */
const ownFolders = ['../configs', '../environments'].map((folder) => {
  const name = fileURLToPath(new URL(folder, import.meta.url));
  return realOr(name, name);
});

/** The project's folder is the first. Null: nothing is asked of files. */
function trustedRoots(environment: Environment): string[] | null {
  const [projectFolder, ...roots] = rootsIn(environment);
  if (projectFolder === undefined) return null;
  const active = environment['VIRTUAL_ENV'] ?? '';
  const granted = grantedLines(projectFolder).filter((line) => path.isAbsolute(line));
  const named = [projectFolder, ...roots, ...ownFolders, ...(active === '' ? [] : [active]), ...granted];
  return named.flatMap((root) => realOr(root, null) ?? []);
}

function rootsIn(environment: Environment): string[] {
  return (environment[trustedRootsVariable] ?? '').split(path.delimiter).filter((root) => path.isAbsolute(root));
}

function grantedLines(projectFolder: string): string[] {
  const file = grantedAt(projectFolder);
  if (realOr(file, null) === null) return [];
  const own = ownersOf(realOr(projectFolder, projectFolder), projectFolder);
  const isOurs = [path.dirname(file), file].every((place) => whatOthersCan(place, own) === null);
  return isOurs ? readFileSync(file, 'utf8').split('\n') : [];
}

/**
 * Who may have written what lies below a root: this user, root, and whoever owns the project's folder, in which this user chose to work
 * (a container's root in a folder of its host).
 */
function ownersOf(root: string, projectFolder: string): Set<number> {
  const { uid } = statSync(root);
  const me = process.getuid?.() ?? uid;
  return new Set([me, 0, ...(root === realOr(projectFolder, projectFolder) ? [uid] : [])]);
}

/** A file and its folders up to the root; of a single file that was named, all folders that it lies in. */
function wayTo(real: string, root: string): string[] {
  const isFile = real === root && !statSync(real).isDirectory();
  const way = [real];
  for (let at = real; at !== (isFile ? path.parse(real).root : root); way.push(at)) at = path.dirname(at);
  return way;
}

type Wrong = readonly [found: string, remedy: string];

function whatOthersCan(place: string, owners: ReadonlySet<number>): Wrong | null {
  const found = statSync(place);
  if (process.getuid === undefined) return null; // Windows knows no such owners
  if (!owners.has(found.uid)) {
    return [`${place} belongs to user ${found.uid}`, `if it is meant, make it yours: chown ${userInfo().uid} ${place}`];
  }
  // In a sticky folder, such as /tmp, nobody replaces what is not theirs.
  if (found.isDirectory() && (found.mode & 0o1000) !== 0) return null;
  if ((found.mode & 0o002) !== 0) return [`anybody may write to ${place}`, `chmod o-w ${place}`];
  if ((found.mode & 0o020) === 0 || isOwnGroup(found)) return null;
  return [`group ${found.gid} may write to ${place}`, `chmod g-w ${place}`];
}

/** Many systems give each user a group of their own, and let it write: a group that has nobody else in it is no other. */
function isOwnGroup({ gid }: Stats): boolean {
  if (gid === 0 || gid !== process.getgid?.()) return gid === 0;
  const user = userInfo();
  const lines = (file: string) => textOf(file).split('\n').map((line) => line.split(':')); // prettier-ignore
  const group = lines('/etc/group').find(([, , id]) => Number(id) === gid);
  const others = lines('/etc/passwd').some(([, , uid, primary]) => Number(primary) === gid && Number(uid) !== user.uid);
  if (group === undefined || others) return !others && gid === user.uid;
  return (group[3] ?? '').split(',').every((name) => name === '' || name === user.username);
}

function isRootsAlone(place: string): boolean {
  const real = realOr(place, null);
  return real !== null && wayTo(real, path.parse(real).root).every((at) => whatOthersCan(at, new Set([0])) === null);
}

function isWithin(root: string, file: string): boolean {
  return file === root || file.startsWith(root.endsWith(path.sep) ? root : root + path.sep);
}

function realOr<Other extends string | null>(file: string, other: Other): string | Other {
  try {
    return realpathSync(file);
  } catch {
    return other;
  }
}

function textOf(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return '';
  }
}

function whereToPut(roots: readonly string[], real: string): string {
  return `put it below ${roots[0]}, or start what runs there with RATCHET_CODE_ROOTS=${path.dirname(real)}`;
}

function refused(file: string, what: string, found: string, remedy: string): RatchetError {
  return new RatchetError(
    'ConfigInvalid',
    `${what} ${file} is not taken from Temporal: ${found}. The server of this folder asks nobody who they are, so its workers use only what is their own user's (or root's), writable by nobody else, in the project or in RATCHET_CODE_ROOTS. To use it: ${remedy}. On a machine that nobody else uses, RATCHET_ALONE=1 where that server is started takes all of this away.`,
  );
}
