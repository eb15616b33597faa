/** The command, where its sources are run. */
import { closeProcesses } from '../backends/processes-open.ts';
import { holdSecret } from '../engine/project-secret.ts';
import { runTyped } from './run-command.ts';

process.stdout.on('error', onStdoutError);
holdSecret(process.cwd());
await runTyped(process.argv);

/** `ratchet status | head -2`: who has read what they wanted ends us. A command that follows a run minds it itself, and ends in order. */
function onStdoutError(error: NodeJS.ErrnoException): void {
  if (error.code !== 'EPIPE' && error.code !== 'EIO') throw error;
  if (process.stdout.listenerCount('error') > 1) return;
  void endQuietly();
}

async function endQuietly(): Promise<void> {
  await closeProcesses();
  process.exit();
}
