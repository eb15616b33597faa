import { spawn } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { createInterface } from 'node:readline';
import { type TestContext } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const program = fileURLToPath(new URL('trainer-worker.ts', import.meta.url));
const tsx = import.meta.resolve('tsx');

interface Told {
  readonly result?: unknown;
  readonly error?: string;
  readonly code?: string;
}

export interface TrainerWorker {
  kill(): void;
  /** Does one operation of `trainer-worker.ts`; throws what it says of a failure. */
  do<T>(operation: string, given?: string): Promise<T>;
}

/** `before`: a command that the worker is an argument of, such as `ip netns exec NAME`. */
export function startTrainerWorker(
  t: TestContext,
  {
    python,
    model,
    options,
    cwd,
    before = [],
    env = {},
  }: {
    readonly python: string;
    readonly model: string;
    readonly options: object;
    readonly cwd?: string;
    readonly before?: readonly string[];
    readonly env?: Readonly<Record<string, string>>;
  },
): TrainerWorker {
  const [command, ...args] = [
    ...before,
    process.execPath,
    '--import',
    tsx,
    program,
    python,
    model,
    JSON.stringify(options),
  ];
  const child = spawn(command, args, { stdio: ['pipe', 'pipe', 'inherit'], cwd, env: { ...process.env, ...env } });
  t.after(() => child.kill('SIGKILL'));
  const asked = new Map<string, (told: Told) => void>();
  createInterface(child.stdout).on('line', (line) => {
    const { id, ...told } = JSON.parse(line) as Told & { readonly id: string };
    asked.get(id)?.(told);
  });
  child.on('exit', () => {
    for (const tell of asked.values()) tell({ error: 'the worker has ended' });
  });
  child.stdin.on('error', () => undefined); // it may have been killed
  return {
    kill: () => void child.kill('SIGKILL'),
    async do<T>(operation: string, given = ''): Promise<T> {
      const id = String(asked.size);
      const told = await new Promise<Told>((resolve) => {
        asked.set(id, resolve);
        child.stdin.write(`${id} ${operation} ${given}\n`);
      });
      if (told.error !== undefined) throw Object.assign(new Error(told.error), { code: told.code });
      return told.result as T;
    },
  };
}

/** A process that has ended, and that its parent has not asked about yet, is gone as well. */
export async function untilGone(pid: number): Promise<void> {
  for (;;) {
    const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => null);
    if (stat === null || stat.slice(stat.lastIndexOf(')') + 2).startsWith('Z')) return;
    await delay(50);
  }
}
