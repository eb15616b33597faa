import { createHash } from 'node:crypto';
import { existsSync, statSync } from 'node:fs';
import { realpath, stat } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { RatchetError } from '../core/errors.ts';
import { isRootsAlone, ownersOf, realOr, wayTo, whatOthersCan, type Wrong } from './file-owners.ts';
import { grantedLines, grants, requireGrant, rootsIn } from './grants.ts';
import { secretFileOf } from './project-secret.ts';
import { readRegularSync } from './regular-file.ts';

/**
 * Decides which files a worker may read as configs and run as code. Our own Temporal server listens on the loopback
 * without authentication: any user of the machine may tell its workers to run something. So there they only accept
 * files that no user but their own can have put in place, and places that this user granted. The supervisor of our own
 * server names them in `RATCHET_TRUSTED_ROOTS`. Without the variable every file is allowed, as at a command line or
 * with a server that authenticates its clients.
 *
 * A run's folder may come from another user, copied into the project for inspection. So files within need a grant of
 * their own.
 *
 * Returns the file's real path, so that no link on the way can be swapped before it is opened. A missing file in an
 * allowed place passes, and opening it then reports the error.
 */
export function trustedFile(file: string, what: string, environment: Environment = process.env): string {
  const trusted = trustedData(file, what, environment);
  const [projectFolder] = rootsIn(environment);
  const real = projectFolder === undefined ? null : realOr(file, null);
  if (projectFolder === undefined || real === null) return trusted;
  const isNamed = grantedFiles(projectFolder).some((line) => isWithin(realOr(line, line), real));
  if (isNamed || !liesWithRuns(real, realOr(projectFolder, projectFolder))) return trusted;
  throw refused(file, what, "it lies in a run's folder", 'move it out of there, or name it at a command line of yours');
}

/** Checks a file that is only read, neither run nor trusted: it may also be in a run's folder. */
export function trustedData(file: string, what: string, environment: Environment = process.env): string {
  const roots = trustedRoots(environment);
  if (roots === null) return file;
  const real = realOr(file, null);
  if (isKept(real ?? nearestReal(file), roots[0]!, environment))
    throw refused(file, what, `what lies in ${keptFolder} is read by Ratchet alone`, 'put it elsewhere in the project');
  const root = roots.find((one) => isWithin(one, real ?? nearestReal(file)));
  // The message is the same whether or not the file exists, so it does not reveal which files exist.
  if (root === undefined)
    throw refused(file, what, 'is outside of what was named there', whereToPut(roots, path.resolve(file)));
  if (real === null) return file;
  const owners = ownersOf(root, roots[0]!);
  for (const place of wayTo(real, root)) {
    const wrong = whatOthersCan(place, owners);
    if (wrong !== null) throw refused(file, what, ...wrong);
  }
  if (isOtherThanGranted(real, grantedLines(roots[0]!)))
    throw refused(file, what, 'it was changed since it was granted', 'name it at a command line of yours again');
  return real;
}

/** Whether a file is granted by its digest, and has another one now. */
export function isOtherThanGranted(real: string, lines: readonly string[]): boolean {
  const digests = digestsGranted(real, lines);
  return digests.length > 0 && !digests.includes(digestLine(real) ?? '');
}

/** The grants of a file with earlier contents. */
export function digestsGranted(real: string, lines: readonly string[]): string[] {
  return lines.filter((line) => line.startsWith(grants.digest) && line.endsWith(` ${real}`));
}

/** The grant for a file's present content; null if it cannot be read. */
export function digestLine(real: string): string | null {
  const digest = digestOf(real);
  return digest === null ? null : `${grants.digest}${digest} ${real}`;
}

/** Hex digest of a regular file; null for anything else. */
export function digestOf(file: string): string | null {
  try {
    return createHash('sha256').update(readRegularSync(file)).digest('hex');
  } catch {
    return null;
  }
}

/**
 * Refuses a model folder outside the project that the user did not name. Error messages could otherwise reveal to other
 * users of the machine which folders exist. Ownership is not checked, because its files are read but not run.
 */
export function requireModelPlace(folder: string, what: string, environment: Environment = process.env): void {
  const roots = trustedRoots(environment);
  const real = nearestReal(folder);
  if (roots === null || (roots.some((root) => isWithin(root, real)) && !isKept(real, roots[0]!, environment))) return;
  requireGrant(`${grants.model}${folder}`, `${what} ${folder}`, environment);
}

/**
 * The real path of a store's folder, which a worker reads and writes as its user. It must be at the default place,
 * where no other user can rearrange it; or this user named it at a command line. A granted folder may be shared with
 * others: the grant is for its real path, so a link that is put there later is refused. Null: stores are not checked
 * here.
 */
export async function requireStorePlace(named: string, environment: Environment = process.env): Promise<string | null> {
  const roots = rootsIn(environment);
  if (roots.length === 0) return null;
  const folder = path.resolve(named);
  const key = [folder, ...roots].join('\n');
  const known = storePlaces.get(key);
  if (known && performance.now() - known.atMs < storePlaceFreshMs) return known.real;
  const { there, real } = await nearestRealPath(folder);
  const reals = await Promise.all(roots.map((root) => realpath(root).catch(() => null)));
  const root = reals.find((one) => one !== null && isDefaultStore(real, one)) ?? null;
  const wrong = root === null ? null : await whatOthersCanOnTheWay(there, root, reals[0] ?? root);
  if (root === null || wrong !== null) requireGrantOfStore({ folder, real, wrong }, environment);
  storePlaces.set(key, { atMs: performance.now(), real });
  if (storePlaces.size > storePlacesMax) storePlaces.delete(storePlaces.keys().next().value!);
  return real;
}

/**
 * The default folders of runs, evaluations and searches in a project. Everything else there is the user's, and so is
 * the content of a run's folder: another run within would collide with it.
 */
function isDefaultStore(real: string, root: string): boolean {
  if (!isWithin(root, real)) return false;
  const [first, , third] = path.relative(root, real).split(path.sep);
  const isDefault = first === outputsFolder || (first === 'environments' && third === outputsFolder);
  return isDefault && !isWithRun(real, root);
}

const outputsFolder = 'outputs';

/** Folder of a project's grants, secrets, logs and database. */
const keptFolder = '.ratchet';

/** Whether a file is one of Ratchet's own in a project. The virtual environments among them are named as folders. */
function isKept(real: string, projectFolder: string, environment: Environment): boolean {
  const folder = path.join(projectFolder, keptFolder);
  const secret = secretFileOf(projectFolder, environment);
  if (real === realOr(secret, secret)) return true;
  if (!isWithin(folder, real) && !isWithin(realOr(folder, folder), real)) return false;
  const isPythons = isWithin(realOr(path.join(folder, 'python'), folder), real);
  return !isPythons || statSync(real, { throwIfNoEntry: false })?.isDirectory() !== true;
}

/** The grant for a store's folder, with its real path. */
export function lineOfStoreFolder(folder: string): string {
  return grants.store + nearestReal(folder);
}

/** Whether workers of a project accept such a folder as a store without a grant. */
export function isOwnStore(folder: string, projectFolder: string): boolean {
  const [root, real] = [realOr(projectFolder, projectFolder), nearestReal(folder)];
  if (!isDefaultStore(real, root)) return false;
  let there = real;
  while (realOr(there, null) === null) there = path.dirname(there);
  const owners = ownersOf(root, projectFolder);
  return wayTo(there, root).every((place) => whatOthersCan(place, owners) === null);
}

interface StorePlace {
  readonly folder: string;
  readonly real: string;
  /** The way in which another user can change a folder inside the project. */
  readonly wrong: Wrong | null;
}

function requireGrantOfStore({ folder, real, wrong }: StorePlace, environment: Environment): void {
  const what =
    wrong === null
      ? `The store ${folder}`
      : `The store ${folder}, in which others can write (${wrong[0]}; ${wrong[1]}),`;
  requireGrant(grants.store + real, what, environment, grants.store + folder);
}

/** Every read and write of a store checks. */
const storePlaceFreshMs = 1_000;
const storePlacesMax = 256;
const storePlaces = new Map<string, { readonly atMs: number; readonly real: string }>();

/** `there`: the longest existing part of a path, as a real path; `real`: with the rest appended. */
async function nearestRealPath(folder: string): Promise<{ readonly there: string; readonly real: string }> {
  const absolute = path.resolve(folder);
  const there = await realpath(absolute).catch(() => null);
  if (there !== null || absolute === path.dirname(absolute))
    return { there: there ?? absolute, real: there ?? absolute };
  const above = await nearestRealPath(path.dirname(absolute));
  return { there: above.there, real: path.join(above.real, path.basename(absolute)) };
}

async function whatOthersCanOnTheWay(there: string, root: string, projectFolder: string): Promise<Wrong | null> {
  if (!isWithin(root, there)) return null; // the root itself does not exist
  const owners = ownersOf(root, projectFolder);
  for (let at = there; ; at = path.dirname(at)) {
    const wrong = whatOthersCan(at, owners, await stat(at));
    if (wrong !== null || at === root) return wrong;
  }
}

/** Whether every file is allowed: then messages may also quote a file's text. */
export function readsAnything(environment: Environment = process.env): boolean {
  return trustedRoots(environment) === null;
}

/**
 * Checks an interpreter, which may also be the system's: a Python that only root can have put there. A name without a
 * slash is searched in this process's own PATH, which other users cannot set.
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
  // In a virtual environment it is a link, whose place identifies the environment.
  if (isSystems && isRootsAlone(path.dirname(file))) return command;
  return path.join(trustedFile(path.dirname(file), what, environment), path.basename(file));
}

function isPythons(name: string): boolean {
  return /^(?:python|pypy)[\d.]*$/.test(name);
}

/** Whether workers of a project accept a file without a grant. */
export function isOfProject(file: string, projectFolder: string): boolean {
  const [real, project] = [realOr(file, file), realOr(projectFolder, projectFolder)];
  if (ownFolders.some((root) => isWithin(root, real))) return true;
  return isWithin(project, real) && !liesWithRuns(real, project);
}

/** Whether a file of a project is in a run's folder, or in the default folder of runs. */
function liesWithRuns(real: string, project: string): boolean {
  if (!isWithin(project, real)) return false;
  return isWithin(path.join(project, outputsFolder), real) || isWithRun(path.dirname(real), project);
}

/** Whether a folder below the project's is a run's, or within one. */
function isWithRun(folder: string, project: string): boolean {
  for (let at = folder; at !== project && isWithin(project, at); at = path.dirname(at))
    if (existsSync(path.join(at, 'run.json'))) return true;
  return false;
}

type Environment = Readonly<NodeJS.ProcessEnv>;

/** Ratchet's own folders, which may be named. */
const ownFolders = ['../configs', '../environments'].map((folder) => {
  const name = fileURLToPath(new URL(folder, import.meta.url));
  return realOr(name, name);
});

function grantedFiles(projectFolder: string): string[] {
  return grantedLines(projectFolder).filter((line) => path.isAbsolute(line));
}

/** The project's folder is the first. Null: files are not checked. */
function trustedRoots(environment: Environment): string[] | null {
  const [projectFolder, ...roots] = rootsIn(environment);
  if (projectFolder === undefined) return null;
  const active = environment['VIRTUAL_ENV'] ?? '';
  const named = [
    projectFolder,
    ...roots,
    ...ownFolders,
    ...(active === '' ? [] : [active]),
    ...grantedFiles(projectFolder),
  ];
  return named.flatMap((root) => realOr(root, null) ?? []);
}

export function isWithin(root: string, file: string): boolean {
  return file === root || file.startsWith(root.endsWith(path.sep) ? root : root + path.sep);
}

/** Real path of the longest existing part of a path, with the rest appended. */
function nearestReal(file: string): string {
  const absolute = path.resolve(file);
  const real = realOr(absolute, null);
  if (real !== null || absolute === path.dirname(absolute)) return real ?? absolute;
  return path.join(nearestReal(path.dirname(absolute)), path.basename(absolute));
}

function whereToPut(roots: readonly string[], real: string): string {
  return `put it below ${roots[0]}, or start what runs there with RATCHET_CODE_ROOTS=${path.dirname(real)}. Where a stored run names it: npx ratchet-rl eval checkpoints RUN asks for it`;
}

function refused(file: string, what: string, found: string, remedy: string): RatchetError {
  return new RatchetError(
    'ConfigInvalid',
    `${what} ${file} is not taken from Temporal: ${found}. The Temporal server of this folder does not authenticate its clients, so its workers use only what is their own user's (or root's), writable by nobody else, in the project or in RATCHET_CODE_ROOTS. To use it: ${remedy}. On a machine that nobody else uses, RATCHET_ALONE=1 where that server is started takes all of this away.`,
  );
}
