import { randomUUID } from 'node:crypto';
import type { Client } from '@temporalio/client';
import type { ScheduleChange } from '../../activities/record-change.ts';
import { taskQueues } from '../../core/names.ts';
import type { recordScheduleChange } from '../../workflows/record-schedule-change.ts';

/** Has a change of a schedule recorded, once it was made. Returns before it is: an orchestrator does that. */
export async function tellScheduleChange(client: Client, change: ScheduleChange): Promise<void> {
  await client.workflow.start<typeof recordScheduleChange>('recordScheduleChange', {
    workflowId: `${change.schedule}.${change.what}.${randomUUID().slice(0, 8)}`,
    taskQueue: taskQueues.orchestrator,
    args: [change],
    workflowTaskTimeout: '5s',
    staticSummary: `record who asked for ${change.what} of ${change.schedule}`,
  });
}
