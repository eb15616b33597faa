import { readFileSync, realpathSync, type Stats, statSync } from 'node:fs';
import { userInfo } from 'node:os';
import path from 'node:path';

/** Checks which users can have put a file at its place. */

/**
 * Users who may have written below a root: this user, root, and the owner of the project's folder, in which this user
 * chose to work (a container's root in a folder of its host).
 */
export function ownersOf(root: string, projectFolder: string): Set<number> {
  const { uid } = statSync(root);
  return new Set([...ownersHere(uid), ...(root === realOr(projectFolder, projectFolder) ? [uid] : [])]);
}

/** This user and root. `fallback`: on a system without users. */
export function ownersHere(fallback = 0): Set<number> {
  return new Set([process.getuid?.() ?? fallback, 0]);
}

/** A file and its folders up to the root; for a single named file, all folders above it. */
export function wayTo(real: string, root: string): string[] {
  const isFile = real === root && !statSync(real).isDirectory();
  const way = [real];
  for (let at = real; at !== (isFile ? path.parse(real).root : root); way.push(at)) at = path.dirname(at);
  return way;
}

export type Wrong = readonly [found: string, remedy: string];

export function whatOthersCan(
  place: string,
  owners: ReadonlySet<number>,
  found: Stats = statSync(place),
): Wrong | null {
  if (process.getuid === undefined) return null; // Windows has no such owners
  if (!owners.has(found.uid)) {
    return [
      `${place} belongs to user ${found.uid}`,
      `if it is meant, make it yours: chown ${process.getuid()} ${place}`,
    ];
  }
  // In a sticky folder, such as /tmp, users can only replace their own files.
  if (found.isDirectory() && (found.mode & 0o1000) !== 0) return null;
  if ((found.mode & 0o002) !== 0) return [`anybody may write to ${place}`, `chmod o-w ${place}`];
  if ((found.mode & 0o020) === 0 || isOwnGroup(found)) return null;
  return [`group ${found.gid} may write to ${place}`, `chmod g-w ${place}`];
}

/** Whether another user may have put a file, or a folder above it, at its place. */
export function isOthers(real: string): boolean {
  const owners = new Set([process.getuid?.() ?? 0, 0]);
  return wayTo(real, path.parse(real).root).some((place) => whatOthersCan(place, owners) !== null);
}

/**
 * Many systems give each user a group of their own, with write access: a group without other members counts as this
 * user.
 */
function isOwnGroup({ gid }: Stats): boolean {
  if (gid === 0 || gid !== process.getgid?.()) return gid === 0;
  const user = { uid: process.getuid?.() ?? 0, username: nameOfUser() };
  const lines = (file: string) => textOf(file).split('\n').map((line) => line.split(':')); // prettier-ignore
  const group = lines('/etc/group').find(([, , id]) => Number(id) === gid);
  const others = lines('/etc/passwd').some(([, , uid, primary]) => Number(primary) === gid && Number(uid) !== user.uid);
  if (group === undefined || others) return !others && gid === user.uid;
  return (group[3] ?? '').split(',').every((name) => name === '' || name === user.username);
}

/** Empty if the system has no name for the user, as in a container. */
export function nameOfUser(): string {
  try {
    return userInfo().username;
  } catch {
    return '';
  }
}

export function isRootsAlone(place: string): boolean {
  const real = realOr(place, null);
  return real !== null && wayTo(real, path.parse(real).root).every((at) => whatOthersCan(at, new Set([0])) === null);
}

export function realOr<Other extends string | null>(file: string, other: Other): string | Other {
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
