import { Context } from '@temporalio/activity';
import type { ActivityExecuteInput, ActivityInboundCallsInterceptor, Next } from '@temporalio/worker';
import { withHeartbeat } from './heartbeat.ts';

/** What a workflow asks for between stored objects: `eager` of workflows/options.ts has these and no others. */
const eager = [
  'readSpec',
  'leaseGroups',
  'reopenRounds',
  'filterGroups',
  'packBatch',
  'planStep',
  'commitStep',
  'nextTrainerEpoch',
  'findUnpublished',
] as const;
export type EagerActivity = (typeof eager)[number];

/** What a run is opened with: `opening` of workflows/options.ts has these and no others. */
const opening = ['openRun', 'checkRewind', 'beginLineage', 'findEvaluation'] as const;
export type OpeningActivity = (typeof opening)[number];

const names: ReadonlySet<string> = new Set([...eager, ...opening]);

/** Keeps them alive while they work: none of them says anything of itself. */
export class Beating implements ActivityInboundCallsInterceptor {
  execute(input: ActivityExecuteInput, next: Next<ActivityInboundCallsInterceptor, 'execute'>): Promise<unknown> {
    const { activityType, heartbeatTimeoutMs } = Context.current().info;
    const isToBeat = heartbeatTimeoutMs !== undefined && names.has(activityType);
    return isToBeat ? withHeartbeat(() => next(input)) : next(input);
  }
}
