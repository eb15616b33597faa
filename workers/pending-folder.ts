import { isAlive } from '../backends/is-alive.ts';
import { randomBytes } from 'node:crypto';
import {
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  type Stats,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { RatchetError } from '../core/errors.ts';

/** Who writes pending versions into a folder. */
export interface FolderOwner {
  /** Where its process number means something: host, boot, and the container's own numbers. */
  readonly place: string;
  readonly pid: number;
  /** When the process began, as the kernel counts; null where it does not say. A number that was given again has another. */
  readonly began: string | null;
}

const ownerFile = 'owner.json';
/** Its owner marks a folder this often. */
const markMs = 10 * 60_000;
/** Nobody has marked it for so long: its owner is gone, wherever it was. */
const abandonedMs = 24 * 3_600_000;

/**
 * Where a worker's new versions wait. The usual folder has a name that everybody knows, and in a folder for everybody another user may
 * have taken it: then it is one with a name that nobody knows, which is said. One that was named is used or refused.
 */
export function pendingFolderHere(
  say: (line: string) => void,
  {
    named = process.env['RATCHET_PENDING'],
    temporary = os.tmpdir(),
  }: { readonly named?: string | undefined; readonly temporary?: string } = {},
): string {
  if (named !== undefined) return openPendingFolder(named);
  const usual = path.join(temporary, `ratchet-pending-${process.getuid?.() ?? os.userInfo().username}`);
  try {
    return openPendingFolder(usual);
  } catch (error) {
    const own = ownBeside(usual) ?? mkdtempSync(`${usual}-`);
    say(
      `${usual} cannot be used (${(error as Error).message}). New weights wait in ${own}. Remove what is there, or set RATCHET_PENDING to a folder of yours.`,
    );
    return openPendingFolder(own);
  }
}

/** One that was made before, by whose name and owner nobody else can have made it. */
function ownBeside(usual: string): string | null {
  const names = readdirSync(path.dirname(usual)).filter((name) => name.startsWith(`${path.basename(usual)}-`));
  const folders = names.map((name) => path.join(path.dirname(usual), name));
  return folders.find((folder) => isPrivate(lstatSync(folder, { throwIfNoEntry: false }))) ?? null;
}

function isPrivate(about: Stats | undefined): boolean {
  return about?.isDirectory() === true && about.uid === process.getuid?.() && (about.mode & 0o077) === 0;
}

/**
 * A folder of this process's own on its own disk, beside those of others; what the dead left there is removed. Its loss costs a replay,
 * never a version.
 */
export function openPendingFolder(parent: string, self = thisProcess()): string {
  mkdirSync(parent, { recursive: true, mode: 0o700 });
  // In a folder for everybody, another user may have put a link there that leads to a folder of this user.
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
  // By the clock of that disk, which may be another machine's.
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

/** Whether nobody writes into a folder any more. Of processes elsewhere only their mark is looked at: their numbers are others. */
function isLeft(folder: string, self: FolderOwner, nowMs: number): boolean {
  const owner = readOwner(folder);
  if (owner?.place === self.place) {
    const began = beganAt(owner.pid);
    if (!isAlive(owner.pid) || (owner.began !== null && began !== null && began !== owner.began)) return true;
  }
  return nowMs - markedAtMs(folder) > abandonedMs;
}

/** Null where it does not say: it is being made this moment. */
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
  return Infinity; // it was removed meanwhile
}

function renew(mark: string): void {
  try {
    utimesSync(mark, new Date(), new Date());
  } catch {
    // The disk is full or gone, which whoever writes there will say.
  }
}

function thisProcess(): FolderOwner {
  const boot = readOr('/proc/sys/kernel/random/boot_id', '');
  return { place: [os.hostname(), boot, numbersOf()].join(' '), pid: process.pid, began: beganAt(process.pid) };
}

/** Which process numbers are meant: those of this container, or of the whole machine. */
function numbersOf(): string {
  try {
    return readlinkSync('/proc/self/ns/pid');
  } catch {
    return ''; // no Linux
  }
}

/** In ticks since the machine began; the name before it, in brackets, may hold anything. */
function beganAt(pid: number): string | null {
  const fields = readOr(`/proc/${pid}/stat`, '').split(') ').at(-1)?.split(' ') ?? [];
  return fields[19] ?? null;
}

function readOr(file: string, otherwise: string): string {
  try {
    return readFileSync(file, 'utf8').trim();
  } catch {
    return otherwise;
  }
}
