import { mkdir } from 'node:fs/promises';
import path from 'node:path';
import { Command } from 'commander';
import { allCopies } from '../../backends/store/index.ts';
import { choosePolicyPort, localRoles, policyUrlAt } from '../../workers/roles.ts';
import { startStack } from '../../workers/supervisor.ts';
import { startClock } from '../clock.ts';

export const devCommand = new Command('dev')
  .description('a Temporal server and all roles on this machine, supervised, until Ctrl-C')
  .option('--weights <folder...>', 'folders the policy server may load weights from', ['outputs'])
  .action(async ({ weights }: { weights: string[] }) => {
    const clock = startClock();
    const projectFolder = process.cwd();
    // Weights of runs whose store is S3 are copied here.
    const weightRoots = [...weights.map((folder) => path.resolve(projectFolder, folder)), allCopies()];
    for (const root of weightRoots) await mkdir(root, { recursive: true });
    const interrupted = new AbortController();
    const end = new Promise<void>((resolve) =>
      interrupted.signal.addEventListener('abort', () => resolve(), { once: true }),
    );
    process.on('SIGINT', () => interrupted.abort()).on('SIGTERM', () => interrupted.abort());

    const policyPort = await choosePolicyPort();
    const stack = await startStack({
      projectFolder,
      policyUrl: policyUrlAt(policyPort),
      roles: localRoles({ weightRoots, policyPort }),
      log: clock.say,
      signal: interrupted.signal,
    }).catch((error: unknown) => {
      if (interrupted.signal.aborted) return null;
      throw error;
    });
    if (!stack) return;
    clock.say(
      `ready. Temporal ${stack.temporalAddress}${stack.uiUrl ? `, UI ${stack.uiUrl}` : ''}, policy server ${policyUrlAt(policyPort)}`,
    );
    clock.say('start a run:  npx ratchet train configs/rl/reverse-text.toml');
    clock.say(
      `or:           npx ratchet temporal workflow start --type trainRun --task-queue ratchet --input '"configs/rl/reverse-text.toml"'`,
    );
    await end;
    clock.say('stopping; runs go on when `ratchet dev` or `ratchet train` starts again here');
    await stack.stop();
  });
