import { execFileSync } from 'node:child_process';

/** Processes of a GPU worker's ranks, rank 0 first: the worker's child is their host, and its child their launcher. */
export function ranksOf(worker: number): readonly number[] {
  const listed = execFileSync('ps', ['-A', '-o', 'pid=,ppid=,args='], { encoding: 'utf8' });
  const processes = [...listed.matchAll(/^\s*(\d+)\s+(\d+)\s+.*ratchet_torch/gm)].map(([, pid, parent]) => ({
    pid: Number(pid),
    parent: Number(parent),
  }));
  const childrenOf = (parents: readonly number[]): number[] =>
    processes.filter(({ parent }) => parents.includes(parent)).map(({ pid }) => pid);
  return childrenOf(childrenOf(childrenOf([worker]))).sort((a, b) => a - b);
}
