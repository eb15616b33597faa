import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { Command } from '@commander-js/extra-typings';
import { resolveStoreUri } from '../../../store/index.ts';
import { readRunningStack } from '../../../workers/stack/project-lock.ts';
import type { RunStatus } from '../../../workflows/control/messages.ts';
import type { trainRun } from '../../../workflows/train-run.ts';
import { type Audience, chooseTelling, openAudience, tellingOptions } from '../../follow/audience.ts';
import { connect, findRun, findTemporal, temporalHere } from '../../../workers/temporal/client.ts';
import { describeFigures } from '../../describe/figures.ts';
import { StoredRollouts } from '../../view/stored-rollouts.ts';
import { watchRun, watchStack, whenLeft } from '../../follow/watch-run.ts';

const help = `
Ctrl-C leaves the run running. Temporal is the one that runs in this folder, or at TEMPORAL_ADDRESS; the store is needed
for rollouts only.
`;

export const attachCommand = new Command('attach')
  .description('watch a run that is running: the live view, or lines; leaving it leaves it running')
  .argument('<run>')
  .option('--store <uri>', 'where the runs are, to read rollouts from; default: where the run says, if that is here')
  .option(...tellingOptions.plain)
  .option(...tellingOptions.json)
  .addHelpText('after', help)
  .action(async (run, options) => {
    const projectFolder = process.cwd();
    const storeUri = options.store === undefined ? null : resolveStoreUri(options.store, projectFolder);
    const temporal = await temporalHere(projectFolder);
    if (temporal === null) {
      const exitCode = await tellStored(run, options.store, openAudience(options.json ? 'json' : 'lines'));
      if (exitCode !== null) {
        process.exitCode = exitCode;
        return;
      }
    }
    const audience = openAudience(chooseTelling(options, process.env, process.stdout));
    const { client, close } = await connect(temporal ?? (await findTemporal(projectFolder)));
    const { interrupted, stop } = whenLeft();
    const elsewhere = Boolean(process.env['TEMPORAL_ADDRESS']);
    const watched = watchStack(
      projectFolder,
      elsewhere ? null : ((await readRunningStack(projectFolder))?.pid ?? null),
    );
    try {
      const handle = client.workflow.getHandle<typeof trainRun>((await findRun(client, run)).workflowId);
      const { goOnFromHere } = await import('../../stored/stored-runs.ts');
      const goOn = (await goOnFromHere(run, options.store)) ?? '`ratchet train` with its run file';
      process.exitCode = await watchRun(handle, {
        run,
        audience,
        stack: null,
        wasRunning: true,
        rollouts: (status) => rolloutsOf(status, storeUri),
        known: null,
        goOn,
        goOnPlainly: goOn,
        interrupted,
        gone: watched.gone,
      });
    } finally {
      watched.stop();
      stop();
      await close();
    }
  });

/** Exit code; null when no folder here has such a run either. A run that is not over has not been attached to. */
async function tellStored(run: string, store: string | undefined, audience: Audience): Promise<number | null> {
  const { describeGoOn, findStoredRun } = await import('../../stored/stored-runs.ts');
  const stored = await findStoredRun(run, store);
  if (stored === null) return null;
  const { step, maxSteps, state, policyDigest: policy, weights, effectiveness } = stored;
  const isOver = state === 'finished';
  const unseen = { leaving: 'detach', rollouts: () => null, onLeave: () => undefined } as const;
  await audience.begin({ ...unseen, run, workflow: run, attached: false });
  const message = `${run} is not running here: ${state} at step ${step} of ${maxSteps}`;
  audience.say(message);
  for (const line of describeFigures(stored, false)) audience.say(line);
  audience.say(
    `more of it    npx ratchet-rl status ${run}, npx ratchet-rl events ${run}, npx ratchet-rl rollouts ${run} --step ${step}`,
  );
  for (const line of describeGoOn(stored)) audience.say(line);
  const figures = { step, policy, weights, ledger_sound: null, ettr: effectiveness.ettr };
  audience.end({ outcome: isOver ? 'finished' : 'lost', exit_code: isOver ? 0 : 1, message, ...figures });
  return isOver ? 0 : 1;
}

/** The folder that the run names, if it is here; an S3 store needs more than its URI, so the option must name it. */
function rolloutsOf({ run, store }: RunStatus, given: string | null): StoredRollouts | null {
  if (given !== null) return new StoredRollouts({ name: run, store: given });
  if (!store.startsWith('file:') || !existsSync(fileURLToPath(store))) return null;
  return new StoredRollouts({ name: run, store: store.slice(0, -`${run}/`.length) });
}
