import { createHash, randomBytes } from 'node:crypto';
import { lstatSync, mkdirSync, readdirSync, readFileSync, readlinkSync, realpathSync, rmSync, statSync, utimes } from 'node:fs'; // prettier-ignore
import os from 'node:os';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { endingMs, endProcessesIn, endProcessesWhere } from './processes.mjs';

/**
 * Where trainers work: below a folder of this user, one folder for each process that starts them, whose name says which process that is. What a
 * dead process left is ended and removed; what it wrote is never used.
 */

/** Pending versions wait on the same disk, which has room for models. */
export function trainersFolder(environment: Readonly<NodeJS.ProcessEnv> = process.env): string {
  return path.join(environment['RATCHET_PENDING'] ?? os.tmpdir(), `ratchet-prime-rl-${process.getuid?.() ?? 'user'}`);
}

/** Makes a folder for a trainer of this process, after everything of dead processes has ended. */
export async function openPlace(parent: string): Promise<string> {
  if (process.platform !== 'linux')
    throw new RatchetError('Unsupported', 'prime-rl’s trainer runs on Linux alone: its processes are found in /proc.');
  mkdirSync(parent, { recursive: true, mode: 0o700 });
  // In a shared folder, another user may have put a link there that leads to a folder of this user.
  for (const { uid } of [lstatSync(parent), statSync(parent)]) {
    if (uid === process.getuid?.()) continue;
    throw new RatchetError(
      'Unsupported',
      `${parent} belongs to somebody else (user ${uid}); set RATCHET_PENDING to a folder of yours, on a disk with room for checkpoints.`,
    );
  }
  const root = realpathSync(parent); // processes see it without links
  for (const name of readdirSync(root)) await removeLeft(path.join(root, name));
  const folder = path.join(root, `${ownerName()}-${randomBytes(4).toString('hex')}`);
  mkdirSync(folder, { mode: 0o700 });
  keepTouching(folder);
  return folder;
}

/** Ends what a dead process left, and removes its folder. */
async function removeLeft(folder: string): Promise<void> {
  if (!isLeft(folder)) return;
  if (machineOf(path.basename(folder)) === nameOfMachine()) await requireEnded(folder);
  rmSync(folder, { recursive: true, force: true });
}

/** Whether the process that a folder is named after is gone. On this machine that is known; another one touches its folder while it lives. */
function isLeft(folder: string): boolean {
  const owner = path.basename(folder);
  const machine = machineOf(owner);
  if (machine === nameOfMachine()) return !isLiving(owner);
  const touchedAt = statSync(folder, { throwIfNoEntry: false })?.mtimeMs ?? Infinity;
  const silentMs = Date.now() - touchedAt;
  if (machine.split('.')[0] !== nameOfHost()) return silentMs > abandonedMs;
  // The same host before it was started again, or another container of it.
  return silentMs > Math.min(silentMsMax, os.uptime() * 1000);
}

/** A folder’s time says that its process lives, where another machine shares the disk. */
function keepTouching(folder: string): void {
  const timer = setInterval(() => {
    const now = new Date();
    utimes(folder, now, now, (error) => {
      if (error?.code === 'ENOENT') clearInterval(timer); // its trainer was closed
    });
  }, touchMs).unref();
}

const touchMs = 60_000;
/** Several touches in which a living process may be slow, or the clocks of a shared disk differ. */
const silentMsMax = 10 * touchMs;
const abandonedMs = 7 * 24 * 3_600_000;

/** Ends the processes of a folder, and throws where one cannot be ended. */
export async function requireEnded(folder: string): Promise<void> {
  requireNone(await endProcessesIn(folder, endingMs), folder);
}

/** Folder on a shared disk in which the ranks of one node work, below the folder of a start. */
export function nodeFolder(start: string, node: number): string {
  return path.join(start, `node-${node}-${ownerName()}`);
}

/** Ends ranks on this machine whose `ratchet worker --role trainer-node` has died, whatever start they are of. */
export async function requireOrphansEnded(): Promise<void> {
  const machine = nameOfMachine();
  const isOrphaned = (at: string): boolean =>
    at.split(path.sep).some((part) => {
      const owner = /^node-\d+-(.+)$/.exec(part)?.[1] ?? '';
      return machineOf(owner) === machine && !isLiving(owner);
    });
  requireNone(await endProcessesWhere(isOrphaned, endingMs), 'the folder of a node');
}

function requireNone(left: readonly number[], where: string): void {
  if (left.length === 0) return;
  throw new RatchetError(
    'EngineDied',
    `Processes ${left.join(', ')} of an earlier trainer in ${where} do not end, although they were killed: a driver may hold them. Nothing is started beside them. See \`ps -o pid,stat,wchan -p ${left.join(',')}\`; restarting the machine ends them.`,
  );
}

/** Names this process among all processes of all machines that share a disk: its machine, its number, and when it began. */
export function ownerName(): string {
  return [nameOfMachine(), process.pid, beganAt(process.pid)].join('-');
}

/** Whether a process of this machine lives, by its name. */
function isLiving(owner: string): boolean {
  const [, pid, began] = owner.split('-');
  return began !== undefined && beganAt(Number(pid)) === began;
}

function machineOf(owner: string): string {
  return owner.split('-')[0]!;
}

/** Process numbers mean something on one machine, between two starts of it, in one container. */
function nameOfMachine(): string {
  const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8');
  return `${nameOfHost()}.${shortHash([boot, readlinkSync('/proc/self/ns/pid')].join(' '))}`;
}

function nameOfHost(): string {
  return shortHash(os.hostname());
}

function shortHash(text: string): string {
  return createHash('sha256').update(text).digest('hex').slice(0, 12);
}

/** In ticks since the machine began; null where there is no such process. The name before it, in brackets, may hold anything. */
function beganAt(pid: number): string | null {
  try {
    return readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1)?.split(' ')[19] ?? null;
  } catch {
    return null;
  }
}
