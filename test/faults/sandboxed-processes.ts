/** Who is in sandboxes of namespaces, by the processes of this machine. */
import { readdir, readFile } from 'node:fs/promises';
import { listSupervisors } from '../../backends/sandboxes/namespace/supervisors-here.ts';

/** Sandboxes of a project by the processes of this machine. */
export async function sandboxesOf(project: string): Promise<readonly { readonly pid: number }[]> {
  return (await listSupervisors()).filter(({ labels }) => labels.project === project);
}

/** Processes inside of these sandboxes whose command line has a word. */
export async function processesIn(sandboxes: readonly { readonly pid: number }[], word: string): Promise<number[]> {
  const parents = new Map<number, number>();
  const found: number[] = [];
  for (const name of (await readdir('/proc')).filter((one) => /^\d+$/.test(one))) {
    const stat = await readFile(`/proc/${name}/stat`, 'utf8').catch(() => '');
    const words = (await readFile(`/proc/${name}/cmdline`, 'utf8').catch(() => '')).split('\0');
    parents.set(Number(name), Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]));
    if (words.includes(word)) found.push(Number(name));
  }
  const ours = new Set(sandboxes.map(({ pid }) => pid));
  const isInside = (pid: number | undefined): boolean =>
    pid !== undefined && pid > 1 && (ours.has(pid) || isInside(parents.get(pid)));
  return found.filter((pid) => !ours.has(pid) && isInside(pid)).toSorted((a, b) => a - b);
}
