import { constants } from 'node:fs';
import { access, statfs } from 'node:fs/promises';
import path from 'node:path';
import type { WorkflowHandle } from '@temporalio/client';
import { readRunningStack } from '../../workers/stack/project-lock.ts';
import { describeWaiting } from '../follow/follow-run.ts';
import { whyStuck } from '../../workers/temporal/why-stuck.ts';

/** SQLite needs a few free pages for each transaction. */
const roomBytesMin = 1024 * 1024;

/**
 * Describes processes of this folder whose Temporal server does not answer, with the cause if it can be found. null if
 * nothing runs here, or if the server is on another machine.
 */
export async function silentStack(projectFolder: string): Promise<string | null> {
  if (process.env['TEMPORAL_ADDRESS']) return null;
  const running = await readRunningStack(projectFolder);
  if (running === null) return null;
  const trouble = await databaseTrouble(projectFolder);
  const because = trouble === null ? '' : `: ${trouble}`;
  const state = running.state === 'starting' ? 'is being started' : 'does not answer';
  return `the processes of this folder run (process ${running.pid}), and their Temporal server ${state}${because}. Nothing is lost: their work continues by itself once it answers`;
}

/** Returns why this folder's Temporal server cannot write its database; null if its disk is fine or no server runs here. */
async function databaseTrouble(projectFolder: string): Promise<string | null> {
  if (process.env['TEMPORAL_ADDRESS'] || (await readRunningStack(projectFolder)) === null) return null;
  return diskTrouble(path.join(projectFolder, '.ratchet'));
}

/** Returns why a folder cannot be written; null if it can. */
export async function diskTrouble(
  folder: string,
  space: (folder: string) => Promise<{ readonly bavail: number; readonly bsize: number }> = statfs,
): Promise<string | null> {
  try {
    await access(folder, constants.W_OK);
    const { bavail, bsize } = await space(folder);
    if (bavail * bsize >= roomBytesMin) return null;
    return `the disk of ${folder} is full (${Math.floor((bavail * bsize) / 1024)} KiB are free); make room on it`;
  } catch (error) {
    return `${folder}, where its database is, cannot be written (${(error as NodeJS.ErrnoException).code ?? String(error)})`;
  }
}

/** Names the run that does not answer, and Temporal's reason if known. */
export async function describeSilence(handle: WorkflowHandle, run: string): Promise<string> {
  const trouble = await databaseTrouble(process.cwd());
  if (trouble !== null) return `waiting on: the Temporal server of this folder, which cannot go on: ${trouble}`;
  const stuck = await whyStuck(handle, run).catch(() => null); // the server may be restarting
  return stuck === null ? describeWaiting(handle) : `waiting on: ${stuck.text}`;
}
