import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { findRunning } from '../../../workers/temporal/client.ts';
import { orchestratorsOf, whyStuck } from '../../../workers/temporal/why-stuck.ts';
import { ownerOf, requireRole } from '../../../workers/temporal/who-may.ts';
import { withTemporal } from '../../temporal/with-temporal.ts';
import { print } from '../../output/print.ts';

export const upgradeCommand = new Command('upgrade')
  .description(
    'move open runs to the present version of Ratchet: each continues from its newest commit, with what was asked of it; without a name all runs, evaluations and prompt searches that older code began',
  )
  .argument('[run]')
  .action((run) => withTemporal((client) => upgrade(client, run)));

async function upgrade(client: Parameters<Parameters<typeof withTemporal>[0]>[0], run: string | undefined) {
  const { takeOverOpen, takeOverRun } = await import('../../../workers/stack/take-over.ts');
  const { workflowCodeVersion } = await import('../../../workers/program/workflow-bundle.ts');
  const version = await workflowCodeVersion();
  const say = print;
  const others = (await orchestratorsOf(client)).filter((one) => one !== '' && one !== version);
  if (others.length > 0) {
    say(
      `orchestrators of other versions poll there too (${others.map((one) => one.slice(0, 8)).join(', ')}): end those, or a run may continue under one of them`,
    );
  }
  if (run === undefined) await requireRole('upgrading all runs', { of: 'all' });
  if (run === undefined) return takeOverOpen({ client, version, say });
  const handle = await findRunning(client, run);
  if (!handle) {
    const message = `The run ${run} is not running: \`ratchet train\` with its file continues from its newest commit, under the present version.`;
    throw new RatchetError('RunNotFound', message);
  }
  await requireRole('upgrade', { of: 'run', run, owner: ownerOf(handle) });
  const isWedged = (await whyStuck(handle, run))?.is === 'wedged';
  const taken = await takeOverRun({ client, version, isWedged }, handle.workflowId);
  say(
    taken === null
      ? `${run}: is at work under the present version already`
      : `${run}: continues from its newest commit under the present version`,
  );
}
