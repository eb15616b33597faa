import { createHash, randomBytes } from 'node:crypto';
import { lstatSync, mkdirSync, readdirSync, readFileSync, readlinkSync, realpathSync, rmSync, statSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { endingMs, endProcessesIn } from './processes.mjs';

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
  const machine = nameOfMachine();
  for (const name of readdirSync(root)) {
    const [where, pid, began] = name.split('-');
    const [other, isHere] = [path.join(root, name), where === machine];
    if (isHere ? began !== undefined && beganAt(Number(pid)) === began : !isOld(other)) continue;
    if (isHere) await requireEnded(other);
    rmSync(other, { recursive: true, force: true });
  }
  const own = [machine, process.pid, beganAt(process.pid), randomBytes(4).toString('hex')].join('-');
  const folder = path.join(root, own);
  mkdirSync(folder, { mode: 0o700 });
  return folder;
}

/** Of another machine, or of this one before it was started again: a trainer makes folders there with every step. */
function isOld(folder: string): boolean {
  return Date.now() - (statSync(folder, { throwIfNoEntry: false })?.mtimeMs ?? Infinity) > abandonedMs;
}

const abandonedMs = 7 * 24 * 3_600_000;

/** Ends the processes of a folder, and throws where one cannot be ended. */
export async function requireEnded(folder: string): Promise<void> {
  const left = await endProcessesIn(folder, endingMs);
  if (left.length === 0) return;
  throw new RatchetError(
    'EngineDied',
    `Processes ${left.join(', ')} of an earlier trainer in ${folder} do not end, although they were killed: a driver may hold them. Nothing is started beside them. See \`ps -o pid,stat,wchan -p ${left.join(',')}\`; restarting the machine ends them.`,
  );
}

/** Process numbers mean something on one machine, between two starts of it, in one container. */
function nameOfMachine(): string {
  const parts = [
    os.hostname(),
    readFileSync('/proc/sys/kernel/random/boot_id', 'utf8'),
    readlinkSync('/proc/self/ns/pid'),
  ];
  return createHash('sha256').update(parts.join(' ')).digest('hex').slice(0, 12);
}

/** In ticks since the machine began; null where there is no such process. The name before it, in brackets, may hold anything. */
function beganAt(pid: number): string | null {
  try {
    return readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1)?.split(' ')[19] ?? null;
  } catch {
    return null;
  }
}
