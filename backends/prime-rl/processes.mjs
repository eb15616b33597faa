/**
 * Processes of a trainer, found by where they work. Killing torchrun leaves its ranks alive, in sessions of their own, and a rank that renames
 * itself overwrites its environment: the folder that a process works in stays what it was. Started as a program with a folder, it ends the
 * processes there once its stdin closes, which is the sign that the GPU worker is gone.
 */
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

/** Names the folder in the environment of everything that is started for it. */
export const folderVariable = 'RATCHET_PRIME_RL_FOLDER';

const lookMs = 20;

/**
 * Processes that work in a folder, or below it, or were started for it. Linux only.
 * @param {string} folder
 * @returns {number[]}
 */
export function processesIn(folder) {
  return processesWhere((at) => isWithin(at, folder));
}

/**
 * Processes by the folder in which they work, or for which they were started.
 * @param {(folder: string) => boolean} isWanted
 * @returns {number[]}
 */
export function processesWhere(isWanted) {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid && belongs(name, isWanted))
    .map(Number);
}

/**
 * @param {string} pid
 * @param {(folder: string) => boolean} isWanted
 */
function belongs(pid, isWanted) {
  try {
    // A removed folder is named with a note behind it.
    const at = readlinkSync(`/proc/${pid}/cwd`).replace(/ \(deleted\)$/, '');
    if (isWanted(at)) return true;
    const variables = readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0');
    return variables.some((line) => {
      const [name, ...value] = line.split('=');
      return name === folderVariable && isWanted(value.join('='));
    });
  } catch {
    return false; // it has ended, or is somebody else's
  }
}

/**
 * @param {string} at
 * @param {string} folder
 */
function isWithin(at, folder) {
  return at === folder || at.startsWith(folder + path.sep);
}

/**
 * Kills them until two looks in a row see none: while the first went on, one that ended before its turn may have started another. Gives those that
 * are still there after so long: a driver may hold a dying process.
 * @param {(folder: string) => boolean} isWanted
 * @param {number} withinMs
 * @returns {Promise<number[]>}
 */
export async function endProcessesWhere(isWanted, withinMs) {
  const deadline = performance.now() + withinMs;
  for (let looksWithout = 0; ;) {
    const found = processesWhere(isWanted);
    looksWithout = found.length === 0 ? looksWithout + 1 : 0;
    if (looksWithout === 2) return [];
    for (const pid of found) {
      try {
        process.kill(pid, 'SIGKILL');
      } catch {
        // it has ended
      }
    }
    if (performance.now() > deadline) return found;
    await sleep(lookMs);
  }
}

/**
 * @param {string} folder
 * @param {number} withinMs
 * @returns {Promise<number[]>}
 */
export function endProcessesIn(folder, withinMs) {
  return endProcessesWhere((at) => isWithin(at, folder), withinMs);
}

/** What a driver may take to let go of a process. */
export const endingMs = 60_000;

if (process.argv[1] === fileURLToPath(import.meta.url) && process.argv[2] !== undefined) {
  const folder = process.argv[2];
  // A Ctrl-C or a closed terminal is for the worker to answer.
  for (const signal of /** @type {const} */ (['SIGINT', 'SIGTERM', 'SIGHUP'])) process.on(signal, () => {});
  const end = () => void endProcessesIn(folder, endingMs).then(() => process.exit(0));
  process.stdin.on('end', end).on('error', end).resume();
}
