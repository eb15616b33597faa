import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';

/** A command line, in the folder where it is typed. */
export interface Asked {
  readonly id: number;
  readonly args: readonly string[];
  readonly folder: string;
  /** Variables besides those of the process. */
  readonly env?: Readonly<Record<string, string>>;
}

export interface Answered {
  readonly id: number;
  readonly code: number;
  /** Beginning of both streams together. */
  readonly text: string;
  /** What went to stdout alone, and to stderr; a part (`part-child.ts`) has neither. */
  readonly out?: string;
  readonly err?: string;
  /** Of all that was said, where `text` is only its beginning. */
  readonly chars: number;
  /** The input was taken although it cannot be right, as the answer shows. */
  readonly isWrong?: boolean;
}

/** Result of a command; null when it did not end in time. */
export type Outcome = Omit<Answered, 'id'> | null;

/** From source, or as they were built with the tests. */
const programs = {
  'cli-child.ts': import.meta.resolve('./cli-child.ts'),
  'part-child.ts': import.meta.resolve('./part-child.ts'),
} as const;

/**
 * A process that does commands of ours, each as if it were typed, or cases of a part (`part-child.ts`). One that hangs is killed, and the next
 * has another process.
 */
export class CliProcess {
  readonly #program: keyof typeof programs;
  #child: ChildProcess | null = null;
  #count = 0;

  constructor(program: keyof typeof programs = 'cli-child.ts') {
    this.#program = program;
  }

  async run(folder: string, args: readonly string[], boundMs: number, env?: Asked['env']): Promise<Outcome> {
    const child = (this.#child ??= await started(this.#program));
    const id = this.#count++;
    const answer = new Promise<Outcome>((resolve) => {
      const timer = setTimeout(() => done(null), boundMs);
      const onMessage = (message: Answered): void => void (message.id === id && done(message));
      const onExit = (code: number | null, signal: string | null): void =>
        done({
          code: code ?? 1,
          text: `Error: the process itself ended (${signal ?? code})\n    at process:1`,
          chars: 0,
        });
      const done = (outcome: Outcome): void => {
        clearTimeout(timer);
        child.off('message', onMessage).off('exit', onExit);
        if (outcome === null || child.exitCode !== null || child.signalCode !== null) this.stop();
        resolve(outcome);
      };
      child.on('message', onMessage).on('exit', onExit);
    });
    child.send({ id, args, folder, ...(env ? { env } : {}) } satisfies Asked);
    return answer;
  }

  stop(): void {
    this.#child?.kill('SIGKILL');
    this.#child = null;
  }
}

async function started(name: keyof typeof programs): Promise<ChildProcess> {
  const env: NodeJS.ProcessEnv = { ...process.env, NO_COLOR: '1' };
  delete env['TEMPORAL_ADDRESS'];
  const program = fileURLToPath(programs[name]);
  const child = fork(program, {
    execArgv: program.endsWith('.ts') ? ['--import', 'tsx'] : [],
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    env,
  });
  await once(child, 'message');
  return child;
}
