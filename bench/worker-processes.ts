import { type ChildProcess, type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createWriteStream, readFileSync } from 'node:fs';
import path from 'node:path';
import { createInterface, type Interface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { environmentForAll, selectEnvironment, trustedRootsVariable } from '../core/child-environment.ts';
import type { WorkerRole } from '../core/names.ts';
import type { Stack } from '../workers/stack/supervisor.ts';
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

const standby = fileURLToPath(new URL('standby.mjs', import.meta.url));

interface Process {
  readonly pid: number;
  readonly child: ChildProcessWithoutNullStreams;
  readonly ended: Promise<void>;
  /** Resolves with a line that begins so. */
  said(words: string): Promise<void>;
}

async function said(
  words: string,
  { lines, ended, log }: { readonly lines: Interface; readonly ended: Promise<void>; readonly log: string },
): Promise<void> {
  const heard = new Promise<true>((resolve) => {
    lines.on('line', (line) => line.startsWith(words) && resolve(true));
  });
  if (!(await Promise.race([heard, ended]))) {
    throw new Error(`a worker ended before it said "${words}": ${readFileSync(log, 'utf8')}`);
  }
}

/** How long processes may take to end that are asked to. */
const endMsMax = 5_000;

/** Workers of a stack and of one role that are started and ended one by one, and not started again by anybody else. */
export class WorkerProcesses {
  /** All workers that ever became ready. */
  readonly lives: WorkerLife[] = [];
  readonly #stack: Stack;
  readonly #role: WorkerRole;
  readonly #args: readonly string[];
  readonly #program: string | undefined;
  readonly #children = new Map<number, ChildProcess>();
  readonly #standing: Process[] = [];

  /** `args`: arguments for `ratchet worker`, or for another program, which says that it is ready in the same words. */
  constructor(stack: Stack, role: WorkerRole, args: readonly string[], program?: string) {
    this.#stack = stack;
    this.#role = role;
    this.#args = args;
    this.#program = program;
  }

  get alive(): readonly WorkerLife[] {
    return this.lives.filter(({ endedAt }) => endedAt === Infinity);
  }

  /** Starts so many processes that have loaded what a worker loads, and that `start` uses first. */
  async standBy(count: number): Promise<void> {
    for (let i = 0; i < count; i++) {
      const process = this.#spawn(['--import', standby]);
      await process.said('standing by');
      this.#standing.push(process);
    }
  }

  /** Resolves when it polls for work. */
  async start(): Promise<WorkerLife> {
    const process = this.#standing.shift() ?? this.#spawn([]);
    const { pid, child, ended } = process;
    child.stdin.end('begin\n');
    await process.said(`${this.#role} worker ready`);
    const life: WorkerLife = { pid, readyAt: Date.now(), endedAt: Infinity };
    this.lives.push(life);
    void ended.then(() => (life.endedAt = Math.min(life.endedAt, Date.now())));
    return life;
  }

  #spawn(nodeArgs: readonly string[]): Process {
    const { projectFolder, logFolder, temporalAddress } = this.#stack;
    const program =
      this.#program === undefined
        ? [command, 'worker', '--role', this.#role]
        : ['--import', import.meta.resolve('tsx'), this.#program];
    const child = spawn(process.execPath, [...nodeArgs, ...program, ...this.#args], {
      cwd: projectFolder,
      stdio: 'pipe',
      env: {
        ...selectEnvironment(environmentForAll, process.env),
        TEMPORAL_ADDRESS: temporalAddress,
        [trustedRootsVariable]: [projectFolder, ...codeRoots()].join(path.delimiter),
      },
    });
    const pid = child.pid!;
    this.#children.set(pid, child);
    const log = path.join(logFolder, `${this.#role}-worker-${pid}.log`);
    const written = createWriteStream(log);
    child.stdin.on('error', () => undefined); // its process is gone, which `ended` reports
    child.stderr.pipe(written, { end: false });
    const ended = once(child, 'exit').then(() => {
      this.#children.delete(pid);
      written.end();
    });
    const lines = createInterface({ input: child.stdout }).on('line', (line) => written.write(`${line}\n`));
    return { pid, child, ended, said: (words) => said(words, { lines, ended, log }) };
  }

  kill(life: WorkerLife): void {
    life.endedAt = Date.now();
    this.#children.get(life.pid)?.kill('SIGKILL');
  }

  /** Announces its end to a worker, which finishes what it is in; resolves when it has ended. */
  async end(life: WorkerLife): Promise<void> {
    const child = this.#children.get(life.pid);
    if (child === undefined) return;
    const ended = once(child, 'exit');
    child.kill('SIGTERM');
    await ended;
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
