import { Command } from '@commander-js/extra-typings';
import { WithStartWorkflowOperation } from '@temporalio/client';
import { RatchetError } from '../../../core/errors.ts';
import { poolNamePattern, poolWorkflowId, taskQueues } from '../../../core/names.ts';
import { print } from '../../output/print.ts';
import { requireRole } from '../../../workers/temporal/who-may.ts';
import { refusedUpdate } from '../../temporal/refused-update.ts';
import { withTemporal } from '../../temporal/with-temporal.ts';

const setCommand = new Command('set')
  .description('change a pool; its trainers keep the settings where its workflow is lost')
  .argument('<pool>')
  .argument('<settings...>', 'name=value …')
  .addHelpText(
    'after',
    `
What can be set:
  slice        seconds for which a run keeps a trainer before another one of its priority may have it (default: 600)
  aging        seconds of waiting that raise a run's priority by 1 (default: 3600); 0: never
  TEAM.quota   most trainers that the runs of a team hold at once; none: no bound (default)
  TEAM.weight  its share relative to other teams (default: 1)
`,
  )
  .action(async (pool, pairs) => {
    if (!poolNamePattern.test(pool))
      throw new RatchetError('ConfigInvalid', `expected the name of a pool, letters, digits and . _ -; got "${pool}"`);
    await requireRole(`setting the pool ${pool}`, { of: 'all' });
    print(`${pool}: ${await setPool(pool, readPairs(pairs))}`);
  });

export const poolCommand = new Command('pool')
  .description('quotas and shares of the teams of a pool; `ratchet queue` shows them')
  .addCommand(setCommand);

function readPairs(pairs: readonly string[]): Record<string, number | null> {
  const settings = pairs.map((pair): [string, number | null] => {
    const [, name, text] = /^([^=]+)=(.+)$/s.exec(pair) ?? [];
    const value = text === 'none' ? null : Number(text ?? Number.NaN);
    if (name === undefined || Number.isNaN(value))
      throw new RatchetError(
        'ConfigInvalid',
        `expected name=value with a number, such as research.quota=2; got "${pair}"`,
      );
    return [name, value];
  });
  return Object.fromEntries(settings);
}

/** The signature of `workflows/pool.ts`, whose code no command loads. */
type PoolWorkflow = (input: { readonly name: string }) => Promise<never>;

const answerWithinMs = 30_000;

/** A pool that has no workflow yet begins with its settings. */
async function setPool(pool: string, settings: Readonly<Record<string, number | null>>): Promise<string> {
  return withTemporal(async (client) => {
    const startWorkflowOperation = new WithStartWorkflowOperation<PoolWorkflow>('pool', {
      workflowId: poolWorkflowId(pool),
      taskQueue: taskQueues.orchestrator,
      args: [{ name: pool }],
      workflowIdConflictPolicy: 'USE_EXISTING',
    });
    try {
      return await client.withDeadline(Date.now() + answerWithinMs, () =>
        client.workflow.executeUpdateWithStart<PoolWorkflow, string, [typeof settings]>('set', {
          startWorkflowOperation,
          args: [settings],
        }),
      );
    } catch (error) {
      throw refusedUpdate(pool, error);
    }
  });
}
