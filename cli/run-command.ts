import { CommanderError } from 'commander';
import { RatchetError } from '../core/errors.ts';
import { closeProcesses } from '../backends/processes-open.ts';
import { codeVersion } from '../workers/code-version.ts';
import { inOurCommands } from './pasted-command.ts';
import { withoutControls } from './plain-text.ts';
import { printAside } from './print.ts';
import { program } from './commands.ts';

/** What was typed, done; what fails is told on stderr, and by `process.exitCode`. */
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

/** On stderr, so that what is read by programs stays as it is. Values may be secret, and are left out. */
function sayReadAs(words: readonly string[]): void {
  const command = words.slice(0, 2).filter((word) => /^[a-z][a-z-]*$/.test(word));
  printAside(`read as: npx ratchet-rl ${command.join(' ')} …`);
}

/** Also where there is nothing wrong: a help that was asked for ends in an error of commander's. */
function isToldAlready(error: unknown): boolean {
  return error instanceof RatchetError || error instanceof CommanderError;
}

/** Loaded only when it is needed: the client takes a while. */
async function inWords(error: unknown): Promise<unknown> {
  return (await import('./temporal-trouble.ts')).temporalTrouble(error);
}

/** Of a command that was typed wrongly, whatever commander itself says of it. */
const wronglyTyped = 2;

/** Our own errors as their message alone; anything else is a bug and keeps its stack. */
function report(error: unknown): number {
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : wronglyTyped;
  if (error instanceof RatchetError) {
    process.stderr.write(`${withoutControls(error.message)}\n`);
    return error.code === 'ConfigInvalid' ? wronglyTyped : 1;
  }
  process.stderr.write(`${withoutControls(error instanceof Error ? (error.stack ?? error.message) : String(error))}\n`);
  return 1;
}
