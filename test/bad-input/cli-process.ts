import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';

/** A command line, in the folder where it is typed. */
export interface Asked {
  readonly id: number;
  readonly args: readonly string[];
  readonly folder: string;
}

export interface Answered {
  readonly id: number;
  readonly code: number;
  /** Of both streams. */
  readonly text: string;
  /** Of all that was said, where `text` is only its beginning. */
  readonly chars: number;
  /** The input was taken although it cannot be right, as the answer shows. */
  readonly isWrong?: boolean;
}

/** What came of a command; null where it did not end within its bound. */
export type Outcome = Omit<Answered, 'id'> | null;

/**
 * A process that does commands of ours, each as if it were typed, or cases of a part (`part-child.ts`). One that hangs is killed, and the next
 * has another process.
 */
export class CliProcess {
  readonly #program: string;
  #child: ChildProcess | null = null;
  #count = 0;

  constructor(program: 'cli-child.ts' | 'part-child.ts' = 'cli-child.ts') {
    this.#program = program;
  }

  async run(folder: string, args: readonly string[], boundMs: number): Promise<Outcome> {
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
    child.send({ id, args, folder } satisfies Asked);
    return answer;
  }

  stop(): void {
    this.#child?.kill('SIGKILL');
    this.#child = null;
  }
}

async function started(program: string): Promise<ChildProcess> {
  const env: NodeJS.ProcessEnv = { ...process.env, NO_COLOR: '1' };
  delete env['TEMPORAL_ADDRESS'];
  const child = fork(fileURLToPath(new URL(program, import.meta.url)), {
    execArgv: ['--import', 'tsx'],
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    env,
  });
  await once(child, 'message');
  return child;
}
