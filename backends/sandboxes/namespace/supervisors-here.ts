import { readdir, readFile } from 'node:fs/promises';
import { z } from 'zod';
import { sharedNext } from '../../../core/shared-next.ts';
import type { ListedSandbox } from '../types.ts';

/** Sandboxes of namespaces on this machine, by the command lines of their first processes: no file has to be kept true. */

const prefix = 'ratchet-sandbox:';
const Mark = z.object({
  name: z.string(),
  createdAtMs: z.number(),
  labels: z.object({ project: z.string(), owner: z.string() }),
});

/** The word of a command line that says which sandbox it is. */
export function markOf(sandbox: ListedSandbox): string {
  return prefix + Buffer.from(JSON.stringify(sandbox)).toString('base64url');
}

type Supervisor = ListedSandbox & { readonly pid: number };

/**
 * Those of this user. A program inside a sandbox cannot pretend to be one: its process has a number in there, too. Looking
 * opens files of every process, and a hundred sandboxes may end at once.
 */
export const listSupervisors = sharedNext(lookAtProcesses);

async function lookAtProcesses(): Promise<readonly Supervisor[]> {
  const here = await depthOf('self');
  const pids = (await readdir('/proc').catch(() => [])).filter((name) => /^\d+$/.test(name));
  const found = await Promise.all(pids.map((pid) => markedProcess(pid, here)));
  return found.filter((one) => one !== null);
}

async function markedProcess(pid: string, here: Depth | null): Promise<Supervisor | null> {
  const line = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
  const word = line.split('\0').find((one) => one.startsWith(prefix));
  if (word === undefined) return null;
  const depth = await depthOf(pid);
  if (depth === null || here === null || depth.namespaces !== here.namespaces || depth.user !== here.user) return null;
  const mark = Mark.safeParse(jsonIn(word.slice(prefix.length)));
  return mark.success ? { ...mark.data, pid: Number(pid) } : null;
}

interface Depth {
  readonly user: string;
  /** How many namespaces of processes it is in, from ours on. */
  readonly namespaces: number;
}

async function depthOf(pid: string): Promise<Depth | null> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '');
  const numbers = /^NSpid:\s+(.*)$/m.exec(status)?.[1];
  const user = /^Uid:\s+\d+\s+(\d+)/m.exec(status)?.[1];
  return numbers === undefined || user === undefined ? null : { user, namespaces: numbers.split(/\s+/).length };
}

function jsonIn(word: string): unknown {
  try {
    return JSON.parse(Buffer.from(word, 'base64url').toString());
  } catch {
    return null;
  }
}
