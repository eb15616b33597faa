import { onAbort } from '../../core/on-abort.ts';
import { KeptOutput } from './kept-output.ts';
import type { CommandResult, RunningCommand, SandboxCommand } from './types.ts';

/** How a command ended, by what its kind reports. */
export type CommandOutcome = Pick<CommandResult, 'code' | 'signal' | 'isTimedOut'> & {
  /** Said behind its errors: why it was stopped. */
  readonly note?: string;
};

/** A command that runs: keeps what it prints, and makes its result. */
export class CommandRun implements RunningCommand {
  readonly #stdout: KeptOutput;
  readonly #stderr: KeptOutput;
  readonly #result: Promise<CommandResult>;
  readonly #stop: () => void | Promise<void>;

  constructor(
    { outputBytesMax }: Pick<SandboxCommand, 'outputBytesMax'>,
    /** Begins it: `take` gets its output; `ended` resolves at its end; `kill` stops it. */
    begin: (take: (name: 'out' | 'err', bytes: Buffer) => void) => {
      readonly ended: Promise<CommandOutcome>;
      readonly kill: () => void | Promise<void>;
    },
    signal?: AbortSignal,
  ) {
    this.#stdout = new KeptOutput(outputBytesMax);
    this.#stderr = new KeptOutput(outputBytesMax);
    const { ended, kill } = begin((name, bytes) => (name === 'out' ? this.#stdout : this.#stderr).add(bytes));
    this.#stop = kill;
    const stopListening = onAbort(signal, () => void kill());
    if (signal?.aborted) void kill();
    this.#result = ended.then((outcome) => this.#resultOf(outcome)).finally(stopListening);
    this.#result.catch(() => undefined); // `wait` may come later
  }

  wait(): Promise<CommandResult> {
    return this.#result;
  }

  async kill(): Promise<void> {
    await this.#stop();
  }

  output(): { readonly stdout: string; readonly stderr: string } {
    return { stdout: this.#stdout.text(), stderr: this.#stderr.text() };
  }

  #resultOf({ code, signal, isTimedOut, note }: CommandOutcome): CommandResult {
    const { stdout, stderr } = this.output();
    const errors =
      note === undefined ? stderr : `${stderr}${stderr === '' || stderr.endsWith('\n') ? '' : '\n'}${note}\n`;
    return { code, signal, stdout, stderr: errors, isTimedOut, isCut: this.#stdout.isCut || this.#stderr.isCut };
  }
}
