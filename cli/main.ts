/** Entry of the command when it runs from source. */
import '../workers/take-secrets.ts';
import { closeProcesses } from '../host/processes-open.ts';
import { holdSecret } from '../host/project-secret.ts';
import { runTyped } from './run-command.ts';

process.stdout.on('error', onStdoutError);
holdSecret(process.cwd());
await runTyped(process.argv);

/**
 * `ratchet status | head -2`: a closed pipe ends the command. A command that follows a run handles this itself, and
 * ends in order.
 */
function onStdoutError(error: NodeJS.ErrnoException): void {
  if (error.code !== 'EPIPE' && error.code !== 'EIO') throw error;
  if (process.stdout.listenerCount('error') > 1) return;
  void endQuietly();
}

async function endQuietly(): Promise<void> {
  await closeProcesses();
  process.exit();
}
