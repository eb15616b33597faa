import { createHash } from 'node:crypto';
import { type Client, ScheduleAlreadyRunning } from '@temporalio/client';
import { scheduleStoreMemo, taskQueues } from '../../core/names.ts';

/** How often sandboxes that nobody owns are looked for. */
export const sweepEveryMs = 60_000;

/**
 * Makes the Temporal Schedule that sweeps the sandboxes of a place of runs, unless it is there: it goes on without any
 * run. Returns its id, and whether it was made now.
 */
export async function scheduleSweeps(
  client: Client,
  store: string,
  everyMs = sweepEveryMs,
): Promise<{ readonly id: string; readonly isNew: boolean }> {
  const id = `sandboxes.${createHash('sha256').update(store).digest('hex').slice(0, 8)}`;
  try {
    await client.schedule.create({
      scheduleId: id,
      spec: { intervals: [{ every: everyMs }] },
      action: {
        type: 'startWorkflow',
        workflowType: 'sweepSandboxes',
        taskQueue: taskQueues.orchestrator,
        args: [{ store }],
        workflowId: id,
        workflowTaskTimeout: '5s',
        staticSummary: 'end the sandboxes that nobody owns',
      },
      // What was missed while no server ran is done by the next one.
      policies: { overlap: 'SKIP', catchupWindow: everyMs },
      memo: { [scheduleStoreMemo]: store },
    });
    return { id, isNew: true };
  } catch (error) {
    if (!(error instanceof ScheduleAlreadyRunning)) throw error;
    return { id, isNew: false };
  }
}
