import { Command, CommanderError } from 'commander';
import { RatchetError } from '../core/errors.ts';
import { codeVersion } from '../workers/code-version.ts';
import { checkCommand } from './commands/check.ts';
import { devCommand } from './commands/dev.ts';
import { logsCommand } from './commands/logs.ts';
import { statusCommand } from './commands/status.ts';
import { pauseCommand, resumeCommand, setCommand } from './commands/steer.ts';
import { temporalCommand } from './commands/temporal.ts';
import { trainCommand } from './commands/train.ts';
import { workerCommand } from './commands/worker.ts';

const ratchet = new Command('ratchet')
  .description('RL post-training of language models as a durable Temporal workflow.')
  .version(codeVersion, '-V, --version')
  .showHelpAfterError('(ratchet --help lists the commands)')
  .exitOverride();

for (const command of [
  trainCommand,
  checkCommand,
  statusCommand,
  logsCommand,
  pauseCommand,
  resumeCommand,
  setCommand,
  devCommand,
  workerCommand,
  temporalCommand,
]) {
  ratchet.addCommand(command);
}

try {
  await ratchet.parseAsync(process.argv);
} catch (error) {
  process.exitCode = report(error);
}

/** Our own errors as their message alone; anything else is a bug and keeps its stack. */
function report(error: unknown): number {
  if (error instanceof CommanderError) return error.exitCode;
  if (error instanceof RatchetError) {
    process.stderr.write(`${error.message}\n`);
    return error.code === 'ConfigInvalid' ? 2 : 1;
  }
  process.stderr.write(`${error instanceof Error ? error.stack : String(error)}\n`);
  return 1;
}
