/** A worker that does not see the store, while all others do: it has mounts of its own, which needs Linux and root. */
import { execFileSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import path from 'node:path';
import type { Role } from '../../workers/supervisor.ts';
import type { Surroundings } from './stage-kinds.ts';
import { StageUnavailable } from './stage-unavailable.ts';

/** Workers of these roles are started with mounts of their own. */
export function withOwnMounts(role: Role): Role {
  if (!/^(?:orchestrator|rollout|train) worker/.test(role.name)) return role;
  const args = ['-m', '--propagation', 'private', role.command ?? process.execPath, ...role.args];
  return { ...role, command: 'unshare', args };
}

export function surroundWithMounts(folder: string): Promise<Surroundings> {
  try {
    execFileSync('unshare', ['-m', 'true'], { stdio: 'pipe' });
  } catch (cause) {
    throw new StageUnavailable('a worker with mounts of its own needs Linux and root', { cause });
  }
  mkdirSync(path.join(folder, 'outputs'), { recursive: true });
  return Promise.resolve({});
}

/** From now on a process finds an empty folder where the runs lie, as where a mount went away. */
export function hideStore(pid: number, folder: string): void {
  inMountsOf(pid, 'mount', '-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', path.join(folder, 'outputs'));
}

export function showStore(pid: number, folder: string): void {
  inMountsOf(pid, 'umount', '-l', path.join(folder, 'outputs'));
}

/** What a process finds there. */
export function seenIn(pid: number, folder: string): string[] {
  const listed = inMountsOf(pid, 'find', path.join(folder, 'outputs'), '-mindepth', '1');
  return listed.split('\n').filter((line) => line !== '');
}

function inMountsOf(pid: number, command: string, ...args: readonly string[]): string {
  return execFileSync('nsenter', ['-t', String(pid), '-m', command, ...args], { encoding: 'utf8', stdio: 'pipe' });
}
