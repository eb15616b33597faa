import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { Command } from '@commander-js/extra-typings';
import { withoutVariables } from '../../../core/child-environment.ts';
import { readRunningStack, type RunningStack } from '../../../workers/stack/project-lock.ts';
import { ensureTemporalCli } from '../../../workers/temporal/temporal-cli.ts';

export const temporalCommand = new Command('temporal')
  .description('the Temporal CLI that was found or built, pointed at the server of this folder')
  .argument('[args...]')
  .allowUnknownOption()
  .helpOption(false)
  .action(async (args) => {
    const projectFolder = process.cwd();
    const cli = await ensureTemporalCli({ projectFolder, log: (line) => process.stderr.write(`${line}\n`) });
    const running = await readRunningStack(projectFolder);
    const child = spawn(cli.path, args, { stdio: 'inherit', env: environmentFor(running) });
    const [code] = (await once(child, 'exit')) as [number | null];
    process.exitCode = code ?? 1;
  });

/** Variables for a server elsewhere do not apply to the folder's own server. */
function environmentFor(running: RunningStack | null): NodeJS.ProcessEnv {
  if (process.env['TEMPORAL_ADDRESS'] || !running?.temporalAddress) return process.env;
  const kept = running.uiUrl === null ? process.env : withoutVariables(['TEMPORAL_*'], process.env);
  return { ...kept, TEMPORAL_ADDRESS: running.temporalAddress };
}
