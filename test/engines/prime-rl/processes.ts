import { readdirSync, readFileSync, statSync } from 'node:fs';
import path from 'node:path';
import { processesIn } from '../../../backends/prime-rl/processes.mjs';

/** Processes of a trainer: its launcher, and its ranks in their order. With forks these are those that asked for them, which they die with. */
export interface TrainerProcesses {
  readonly launcher: number;
  readonly ranks: readonly number[];
}

export function trainerProcesses(folder: string): TrainerProcesses {
  const found = processesIn(folder).map((pid) => ({ pid, command: wordsOf(pid, 'cmdline') }));
  const running = found.filter(({ command }) => command.includes('@'));
  const launcher = running.find(({ command }) => command.includes('torch.distributed.run'));
  const ranks = running.filter(({ command }) => !command.includes('torch.distributed.run'));
  if (!launcher) throw new Error(`no launcher works in ${folder}`);
  const rankOf = ({ pid }: { readonly pid: number }): number =>
    Number(
      wordsOf(pid, 'environ')
        .find((line) => line.startsWith('RANK='))
        ?.slice(5),
    );
  return { launcher: launcher.pid, ranks: ranks.sort((a, b) => rankOf(a) - rankOf(b)).map(({ pid }) => pid) };
}

function wordsOf(pid: number, name: 'cmdline' | 'environ'): string[] {
  try {
    return readFileSync(`/proc/${pid}/${name}`, 'utf8').split('\0');
  } catch {
    return []; // it has ended
  }
}

/** Folder of the trainer that was started last below `parent`, which RATCHET_PENDING names. */
export function newestStart(parent: string): string {
  const places = foldersIn(parent, /^ratchet-prime-rl-/).flatMap((folder) => foldersIn(folder, /./));
  const starts = places.flatMap((folder) => foldersIn(folder, /^start-/));
  const newest = starts.sort((a, b) => statSync(a).birthtimeMs - statSync(b).birthtimeMs).at(-1);
  if (newest === undefined) throw new Error(`no trainer was started below ${parent}`);
  return newest;
}

function foldersIn(folder: string, name: RegExp): string[] {
  return readdirSync(folder).flatMap((entry) => (name.test(entry) ? [path.join(folder, entry)] : []));
}
