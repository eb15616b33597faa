import type { ActivityInterceptorsFactory } from '@temporalio/worker';
import { Beating } from './beating.ts';
import { ActivityFailpoints } from './failpoint-interceptor.ts';
import { FailureMapping } from './failures.ts';
import { RunLog } from './run-log.ts';
import { StoreDoubts, type StoreDoubtsOptions } from './store-doubts.ts';

/** What every activity of a worker is wrapped in, from the outside in. */
export function activityInterceptors(options: StoreDoubtsOptions): ActivityInterceptorsFactory[] {
  const log = new RunLog(options.role);
  const doubts = new StoreDoubts(options);
  return [
    () => ({ inbound: new FailureMapping() }),
    () => ({ inbound: doubts }),
    () => ({ inbound: log }),
    () => ({ inbound: new Beating() }),
    () => ({ inbound: new ActivityFailpoints() }),
  ];
}
