import { spawn, type ChildProcess } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { environmentForAll, selectEnvironment } from '../../core/child-environment.ts';

/** Order in which groups end: workers before the server that they report to. */
const guardRanks = { role: 0, server: 1 } as const;
export type GuardRank = keyof typeof guardRanks;

/** Our end of the process that ends all groups when we die suddenly (`guard.mjs`). */
export interface Guard {
  /** Resolves once the guard knows this group, so that nothing starts unguarded. */
  add(group: number, rank: GuardRank): Promise<void>;
  remove(group: number): void;
  /** The guard ends the remaining groups, and then itself. */
  close(): void;
}

export function startGuard(): Guard {
  const groups = new Map<number, GuardRank>();
  let closed = false;
  let process_ = launch();

  function launch(): ChildProcess {
    // A separate session: Ctrl-C in the terminal must not end the guard before those it guards.
    const child = spawn(process.execPath, [fileURLToPath(new URL('./guard.mjs', import.meta.url))], {
      detached: true,
      stdio: ['pipe', 'ignore', 'ignore'],
      env: selectEnvironment(
        environmentForAll.filter((name) => name !== 'NODE_OPTIONS'),
        process.env,
      ),
    });
    child.stdin.on('error', () => {});
    child.on('error', () => {});
    child.on('exit', () => {
      if (!closed) process_ = launch();
    });
    for (const [group, rank] of groups) child.stdin.write(`+ ${guardRanks[rank]} ${group}\n`);
    child.unref();
    return child;
  }

  return {
    add(group, rank) {
      groups.set(group, rank);
      return new Promise((resolve) => {
        process_.stdin?.write(`+ ${guardRanks[rank]} ${group}\n`, () => resolve());
      });
    },
    remove(group) {
      groups.delete(group);
      process_.stdin?.write(`- ${group}\n`);
    },
    close() {
      closed = true;
      process_.stdin?.end();
    },
  };
}
