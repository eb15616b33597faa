import { Context } from '@temporalio/activity';
import type { ActivityExecuteInput, ActivityInboundCallsInterceptor, Next } from '@temporalio/worker';
import { withHeartbeat } from './heartbeat.ts';

/** Activities between stored objects; the same list as `eager` in workflows/options.ts. */
const eager = [
  'readSpec',
  'leaseGroups',
  'reopenRounds',
  'filterGroups',
  'packBatch',
  'commitStep',
  'nextTrainerEpoch',
  'findUnpublished',
  'tellStanding',
] as const;
export type EagerActivity = (typeof eager)[number];

/** Activities that open a run; the same list as `opening` in workflows/options.ts. */
const opening = ['openRun', 'checkRewind', 'setBudget', 'recordChange', 'beginLineage', 'findEvaluation'] as const;
export type OpeningActivity = (typeof opening)[number];

const names: ReadonlySet<string> = new Set([...eager, ...opening]);

/** Sends heartbeats for these activities, which send none themselves. */
export class Beating implements ActivityInboundCallsInterceptor {
  execute(input: ActivityExecuteInput, next: Next<ActivityInboundCallsInterceptor, 'execute'>): Promise<unknown> {
    const { activityType, heartbeatTimeoutMs } = Context.current().info;
    const isToBeat = heartbeatTimeoutMs !== undefined && names.has(activityType);
    return isToBeat ? withHeartbeat(() => next(input)) : next(input);
  }
}
