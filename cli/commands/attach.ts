import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { Command } from 'commander';
import { openRunStore, resolveStoreUri } from '../../backends/store/index.ts';
import { readRunningStack } from '../../workers/project-lock.ts';
import type { RunStatus } from '../../workflows/messages.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { chooseTelling, openAudience, type TellingOptions, tellingOptions } from '../audience.ts';
import { connect, findRun, findTemporal } from '../connection.ts';
import { StoredRollouts } from '../view/stored-rollouts.ts';
import { watchRun, watchStack, whenLeft } from '../watch-run.ts';

const help = `
Ctrl-C leaves the run running. Temporal is the one that runs in this folder, or at TEMPORAL_ADDRESS; the store is needed
for rollouts only.
`;

export const attachCommand = new Command('attach')
  .description('watch a run that is running: the live view, or lines; leaving it leaves it running')
  .argument('<run>')
  .option('--store <uri>', 'where the runs lie, to read rollouts from; default: where the run says, if that is here')
  .option(...tellingOptions.plain)
  .option(...tellingOptions.json)
  .addHelpText('after', help)
  .action(async (run: string, options: TellingOptions & { store?: string }) => {
    const projectFolder = process.cwd();
    const storeUri = options.store === undefined ? null : resolveStoreUri(options.store, projectFolder);
    const audience = openAudience(chooseTelling(options, process.env, process.stdout));
    const { client, close } = await connect(await findTemporal(projectFolder));
    const { interrupted, stop } = whenLeft();
    const elsewhere = Boolean(process.env['TEMPORAL_ADDRESS']);
    const watched = watchStack(
      projectFolder,
      elsewhere ? null : ((await readRunningStack(projectFolder))?.pid ?? null),
    );
    try {
      const handle = client.workflow.getHandle<typeof trainRun>((await findRun(client, run)).workflowId);
      process.exitCode = await watchRun(handle, {
        run,
        audience,
        stack: null,
        wasRunning: true,
        rollouts: (status) => rolloutsOf(status, storeUri),
        known: null,
        goOn: 'ratchet train with its run file',
        goOnPlainly: 'ratchet train with its run file',
        interrupted,
        gone: watched.gone,
      });
    } finally {
      watched.stop();
      stop();
      await close();
    }
  });

/** A folder that the run names is read where it is here; an S3 store needs what its URI says, so it has to be given. */
function rolloutsOf({ run, store }: RunStatus, given: string | null): StoredRollouts | null {
  if (given !== null) return new StoredRollouts(openRunStore(given, run));
  if (!store.startsWith('file:') || !existsSync(fileURLToPath(store))) return null;
  return new StoredRollouts(openRunStore(store.slice(0, -`${run}/`.length), run));
}
