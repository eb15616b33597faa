import { randomInt } from 'node:crypto';
import type { ChildProcess } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { platform } from 'node:os';

/** A child process in namespaces of its own: how it is begun and ended; isolation.py does the rest inside. */

/** Paths of setpriv and unshare. Contains nothing of ours: no user name, no key, no proxy. */
export const systemPath = '/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin';

/** Linux, and what of it: for messages. */
export const namespacesNeeded =
  'Linux (x64 or arm64, 5.12 or newer) with unshare and setpriv of util-linux, ' +
  'and user namespaces for everyone (sysctl kernel.unprivileged_userns_clone=1, and user.max_user_namespaces and user.max_net_namespaces above 0; on Ubuntu 24.04 kernel.apparmor_restrict_unprivileged_userns=0; ' +
  'in Docker --security-opt seccomp=unconfined --security-opt apparmor=unconfined)';

/** Begins a command that ends with this process, even when this is killed. */
export function dyingTogether(): readonly string[] {
  return platform() === 'linux' ? ['setpriv', '--pdeathsig', 'KILL'] : [];
}

/**
 * Begins a command in namespaces: unshare gets the signal of `dyingTogether`, and ends its namespace. As another user,
 * root needs no user namespace, which would contain no other user.
 */
export function inNamespaces(options: { readonly isOtherUser: boolean; readonly sharesNetwork?: boolean }): string[] {
  const own = [
    ...(options.isOtherUser ? [] : ['-Ur']),
    ...(options.sharesNetwork ? [] : ['-n']),
    ...'--pid --fork --kill-child --mount --ipc --uts'.split(' '),
  ];
  return [...dyingTogether(), 'unshare', ...own];
}

/** A user number that no system assigns, so that no two children count as one. */
export function anyUser(): number {
  return randomInt(0x7000_0000, 0x7fff_0000);
}

/**
 * Kills a child, its children and its whole group. Includes processes that left the group: the first process of the
 * namespace ends all others with it.
 */
export function killWhole({ pid, exitCode, signalCode }: ChildProcess): void {
  if (pid === undefined) return;
  const isRunning = exitCode === null && signalCode === null;
  for (const target of [...(isRunning ? [...childrenOf(pid), pid] : []), -pid]) killIfThere(target);
}

/** Ends a process, or with a negative number a group, unless it is gone. */
export function killIfThere(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}

/** Empty if the system does not report them. */
export function childrenOf(pid: number): number[] {
  try {
    const pids = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ');
    return pids.map(Number).filter((child) => child > 0);
  } catch {
    return [];
  }
}
