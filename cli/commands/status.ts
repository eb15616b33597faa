import { Command } from 'commander';
import type { RunStatus } from '../../workflows/messages.ts';
import { RatchetError } from '../../core/errors.ts';
import { connect, findTemporal } from '../connection.ts';

export const statusCommand = new Command('status')
  .description('where a run stands and what it is waiting for; without a name, all runs')
  .argument('[run]')
  .action(async (run: string | undefined) => {
    const { client, close } = await connect(await findTemporal(process.cwd()));
    try {
      if (run === undefined) {
        let count = 0;
        for await (const { workflowId, status } of client.workflow.list({
          query: "WorkflowType='trainRun'",
          pageSize: 50,
        })) {
          process.stdout.write(`${workflowId}  ${status.name.toLowerCase()}\n`);
          if (++count === 50) break;
        }
        if (count === 0) process.stdout.write('no runs yet\n');
        return;
      }
      const handle = client.workflow.getHandle(run);
      const { status } = await handle.describe().catch((cause: unknown) => {
        throw new RatchetError(
          'RunNotFound',
          `There is no run ${run} on this Temporal server. \`ratchet status\` lists those there are.`,
          { cause },
        );
      });
      const details = await client.withDeadline(Date.now() + 10_000, () => handle.query<RunStatus>('status'));
      process.stdout.write(`${describe(details, status.name)}\n`);
    } finally {
      await close();
    }
  });

function describe(status: RunStatus, workflow: string): string {
  const waiting = status.waitingOn.map(({ what, since }) => `  ${what}, since ${since}`);
  return [
    `${status.run}: ${status.phase} (workflow ${workflow.toLowerCase()}), step ${status.step} of ${status.maxSteps}, lineage ${status.lineage}`,
    ...(status.pausedBecause ? [`paused because: ${status.pausedBecause}`] : []),
    `policy        ${status.policyDigest?.slice(0, 12) ?? 'none yet'}`,
    `learning rate ${status.learningRate} (peak)`,
    `files         ${status.store}`,
    ...(waiting.length > 0 ? ['waiting on:', ...waiting] : []),
  ].join('\n');
}
