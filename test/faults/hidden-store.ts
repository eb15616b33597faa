/** Hides the store from one worker while all others see it. The worker gets its own mounts, which needs Linux and root. */
import { execFileSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import path from 'node:path';
import type { Role } from '../../workers/stack/supervisor.ts';
import type { Surroundings } from './stage-kinds.ts';
import { StageUnavailable } from './stage-unavailable.ts';

/** Roles whose workers start with their own mounts. */
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

/** Makes a process see an empty folder in place of the runs, as after an unmount. */
export function hideStore(pid: number, folder: string): void {
  inMountsOf(pid, 'mount', '-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', path.join(folder, 'outputs'));
}

export function showStore(pid: number, folder: string): void {
  inMountsOf(pid, 'umount', '-l', path.join(folder, 'outputs'));
}

/** Files that a process sees there. */
export function seenIn(pid: number, folder: string): string[] {
  const listed = inMountsOf(pid, 'find', path.join(folder, 'outputs'), '-mindepth', '1');
  return listed.split('\n').filter((line) => line !== '');
}

function inMountsOf(pid: number, command: string, ...args: readonly string[]): string {
  return execFileSync('nsenter', ['-t', String(pid), '-m', command, ...args], { encoding: 'utf8', stdio: 'pipe' });
}
