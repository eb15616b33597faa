import { isAlive } from '../../host/is-alive.ts';
import { processPlace } from '../../host/process-place.ts';
import { randomBytes } from 'node:crypto';
import {
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  type Stats,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';

/** The process that writes pending versions into a folder. */
export interface FolderOwner {
  /** Scope of its process number (`processPlace`). */
  readonly place: string;
  readonly pid: number;
  /** Start time of the process in the kernel's count; null if unknown. It differs when a process number is reused. */
  readonly began: string | null;
}

const ownerFile = 'owner.json';
/** Interval at which its owner renews the mark. */
const markMs = 10 * 60_000;
/** A mark this old means that the owner is gone, on whatever machine it ran. */
const abandonedMs = 24 * 3_600_000;

/**
 * Folder in which a worker's new versions wait. The default folder's name is public, and in a shared folder another
 * user may have taken it; then a folder with a random name is used, with a message. A folder named by the user is used
 * or refused.
 */
export function pendingFolderHere(
  say: (line: string) => void,
  {
    named = process.env['RATCHET_PENDING'],
    temporary = os.tmpdir(),
  }: { readonly named?: string | undefined; readonly temporary?: string } = {},
): string {
  if (named !== undefined) return openPendingFolder(named);
  const preferred = path.join(temporary, `ratchet-pending-${process.getuid?.() ?? os.userInfo().username}`);
  try {
    return openPendingFolder(preferred);
  } catch (error) {
    const own = ownBeside(preferred) ?? mkdtempSync(`${preferred}-`);
    say(
      `${preferred} cannot be used (${(error as Error).message}). New weights wait in ${own}. Remove what is there, or set RATCHET_PENDING to a folder of yours.`,
    );
    return openPendingFolder(own);
  }
}

/** A random-named folder made before: its name and owner show that only this user can have made it. */
function ownBeside(preferred: string): string | null {
  const names = readdirSync(path.dirname(preferred)).filter((name) => name.startsWith(`${path.basename(preferred)}-`));
  const folders = names.map((name) => path.join(path.dirname(preferred), name));
  return folders.find((folder) => isPrivate(lstatSync(folder, { throwIfNoEntry: false }))) ?? null;
}

function isPrivate(about: Stats | undefined): boolean {
  return about?.isDirectory() === true && about.uid === process.getuid?.() && (about.mode & 0o077) === 0;
}

/**
 * A folder for this process on its own disk, beside those of others; removes folders of dead processes. Its loss costs
 * a replay, never a version.
 */
export function openPendingFolder(parent: string, self = thisProcess()): string {
  mkdirSync(parent, { recursive: true, mode: 0o700 });
  // In a shared folder, another user may have put a link there that leads to a folder of this user.
  for (const { uid } of [lstatSync(parent), statSync(parent)]) {
    if (uid === process.getuid?.()) continue;
    throw new RatchetError(
      'Unsupported',
      `${parent} belongs to somebody else (user ${uid}); set RATCHET_PENDING to a folder of yours`,
    );
  }
  const folder = path.join(parent, `${self.pid}-${randomBytes(4).toString('hex')}`);
  mkdirSync(folder, { mode: 0o700 });
  const mark = path.join(folder, ownerFile);
  writeFileSync(mark, JSON.stringify(self));
  // The clock of that disk, which may be another machine's.
  const nowMs = statSync(mark).mtimeMs;
  for (const name of readdirSync(parent)) {
    const other = path.join(parent, name);
    if (/^\d+-[0-9a-f]+$/.test(name) && other !== folder && isLeft(other, self, nowMs)) {
      rmSync(other, { recursive: true, force: true });
    }
  }
  setInterval(() => renew(mark), markMs).unref();
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/**
 * Whether a folder's writer is gone. Process numbers of other machines mean nothing here; for those only the age of the
 * mark counts.
 */
function isLeft(folder: string, self: FolderOwner, nowMs: number): boolean {
  const owner = readOwner(folder);
  if (owner?.place === self.place) {
    const began = beganAt(owner.pid);
    if (!isAlive(owner.pid) || (owner.began !== null && began !== null && began !== owner.began)) return true;
  }
  return nowMs - markedAtMs(folder) > abandonedMs;
}

/** null without an owner: it is being made at this moment. */
function readOwner(folder: string): FolderOwner | null {
  try {
    return JSON.parse(readFileSync(path.join(folder, ownerFile), 'utf8')) as FolderOwner;
  } catch {
    return null;
  }
}

function markedAtMs(folder: string): number {
  for (const file of [path.join(folder, ownerFile), folder]) {
    const found = statSync(file, { throwIfNoEntry: false });
    if (found) return found.mtimeMs;
  }
  return Infinity; // removed meanwhile
}

function renew(mark: string): void {
  try {
    utimesSync(mark, new Date(), new Date());
  } catch {
    // The disk is full or gone; writing a version will report that.
  }
}

function thisProcess(): FolderOwner {
  return { place: processPlace(), pid: process.pid, began: beganAt(process.pid) };
}

/** In ticks since the machine began; the name before it, in brackets, may hold anything. */
function beganAt(pid: number): string | null {
  const fields = readOrEmpty(`/proc/${pid}/stat`).split(') ').at(-1)?.split(' ') ?? [];
  return fields[19] ?? null;
}

function readOrEmpty(file: string): string {
  try {
    return readFileSync(file, 'utf8').trim();
  } catch {
    return '';
  }
}
