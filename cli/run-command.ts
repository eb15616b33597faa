import { CommanderError } from '@commander-js/extra-typings';
import { RatchetError } from '../core/errors.ts';
import { closeProcesses } from '../host/processes-open.ts';
import { codeVersion } from '../workers/program/code-version.ts';
import { inOurCommands } from './typed/pasted-command.ts';
import { withoutControls } from './output/plain-text.ts';
import { printAside } from './output/print.ts';
import { program } from './commands.ts';

/** Runs the typed command; errors go to stderr and into `process.exitCode`. */
export async function runTyped(argv: readonly string[]): Promise<void> {
  try {
    const typed = argv.slice(2);
    const words = inOurCommands(typed);
    if (words.length !== typed.length || words.some((word, i) => word !== typed[i])) sayReadAs(words);
    const [first, second] = words;
    const ratchet = await program(first === 'help' ? second : first, codeVersion);
    await ratchet.parseAsync(words, { from: 'user' });
  } catch (error) {
    process.exitCode = report(isToldAlready(error) ? error : await inWords(error));
  } finally {
    await closeProcesses();
  }
}

/** Printed to stderr, so that stdout stays for programs. Leaves out values, which may be secret. */
function sayReadAs(words: readonly string[]): void {
  const command = words.slice(0, 2).filter((word) => /^[a-z][a-z-]*$/.test(word));
  printAside(`read as: npx ratchet-rl ${command.join(' ')} …`);
}

/** Also true without an error: requested help ends in an error of commander's. */
function isToldAlready(error: unknown): boolean {
  return error instanceof RatchetError || error instanceof CommanderError;
}

/** Imported on use: the client takes long to load. */
async function inWords(error: unknown): Promise<unknown> {
  return (await import('../workers/temporal/temporal-trouble.ts')).temporalTrouble(error);
}

/** Exit code of a command typed wrongly, whatever commander's own is. */
const wronglyTyped = 2;

/** Prints our own errors as their message; any other error is a bug and keeps its stack. */
function report(error: unknown): number {
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : wronglyTyped;
  if (error instanceof RatchetError) {
    process.stderr.write(`${withoutControls(error.message)}\n`);
    return error.code === 'ConfigInvalid' ? wronglyTyped : 1;
  }
  process.stderr.write(`${withoutControls(error instanceof Error ? (error.stack ?? error.message) : String(error))}\n`);
  return 1;
}
