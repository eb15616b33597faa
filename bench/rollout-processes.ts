import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createWriteStream, readFileSync } from 'node:fs';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { environmentForAll, selectEnvironment, trustedRootsVariable } from '../core/child-environment.ts';
import type { Stack } from '../workers/supervisor.ts';
import { ticksPerSecond } from './cpu-meter.ts';
import { codeRoots, command } from './run-project.ts';

/** One process from when it was ready; milliseconds of the system clock, as the answers of the fake inference have it. */
export interface WorkerLife {
  readonly pid: number;
  readonly readyAt: number;
  /** Infinity while it lives. */
  endedAt: number;
}

/** Resident memory of a process in MiB, and the CPU seconds it has used; null where there is no /proc. */
export function usageOf(pid: number): { readonly rss_mb: number; readonly cpu_s: number } | null {
  if (process.platform !== 'linux') return null;
  const status = readFileSync(`/proc/${pid}/status`, 'utf8');
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
  const [user, system] = stat
    .slice(stat.lastIndexOf(')') + 2)
    .split(' ')
    .slice(11, 13)
    .map(Number);
  const rssKb = Number(/^VmRSS:\s+(\d+)/m.exec(status)?.[1] ?? 0);
  return { rss_mb: Math.round(rssKb / 1024), cpu_s: (user! + system!) / ticksPerSecond };
}

/** How long processes may take to end that are asked to. */
const endMsMax = 5_000;

/** Rollout workers of a stack that are started and killed one by one, and not started again by anybody else. */
export class RolloutProcesses {
  /** Of all that ever were ready. */
  readonly lives: WorkerLife[] = [];
  readonly #stack: Stack;
  readonly #args: readonly string[];
  readonly #children = new Map<number, ChildProcess>();

  /** `args`: of `ratchet worker`. */
  constructor(stack: Stack, args: readonly string[]) {
    this.#stack = stack;
    this.#args = args;
  }

  get alive(): readonly WorkerLife[] {
    return this.lives.filter(({ endedAt }) => endedAt === Infinity);
  }

  /** Resolves when it asks for work. */
  async start(): Promise<WorkerLife> {
    const { projectFolder, logFolder, temporalAddress } = this.#stack;
    const child = spawn(process.execPath, [command, 'worker', '--role', 'rollout', ...this.#args], {
      cwd: projectFolder,
      stdio: ['ignore', 'pipe', 'pipe'],
      env: {
        ...selectEnvironment(environmentForAll, process.env),
        TEMPORAL_ADDRESS: temporalAddress,
        [trustedRootsVariable]: [projectFolder, ...codeRoots()].join(path.delimiter),
      },
    });
    const pid = child.pid!;
    this.#children.set(pid, child);
    const log = path.join(logFolder, `rollout-worker-${pid}.log`);
    const written = createWriteStream(log);
    child.stderr.pipe(written, { end: false });
    const ended = once(child, 'exit').then(() => {
      this.#children.delete(pid);
      written.end();
    });
    const ready = new Promise<void>((resolve) => {
      createInterface({ input: child.stdout }).on('line', (line) => {
        written.write(`${line}\n`);
        if (line.startsWith('rollout worker ready')) resolve();
      });
    });
    const isReady = await Promise.race([ready.then(() => true), ended.then(() => false)]);
    if (!isReady) throw new Error(`a rollout worker ended before it was ready: ${readFileSync(log, 'utf8')}`);
    const life: WorkerLife = { pid, readyAt: Date.now(), endedAt: Infinity };
    this.lives.push(life);
    void ended.then(() => (life.endedAt = Math.min(life.endedAt, Date.now())));
    return life;
  }

  kill(life: WorkerLife): void {
    life.endedAt = Date.now();
    this.#children.get(life.pid)?.kill('SIGKILL');
  }

  async stop(): Promise<void> {
    const ending = [...this.#children.values()].map((child) => {
      const ended = once(child, 'exit');
      child.kill('SIGTERM');
      return ended;
    });
    await Promise.race([Promise.all(ending), delay(endMsMax)]);
    for (const child of this.#children.values()) child.kill('SIGKILL');
  }
}
