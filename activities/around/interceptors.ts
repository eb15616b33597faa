import type { ActivityInterceptorsFactory } from '@temporalio/worker';
import { Beating } from './beating.ts';
import { ActivityFailpoints } from './failpoint-interceptor.ts';
import { FailureMapping } from './failures.ts';
import { RunLog } from './run-log.ts';
import { StoreDoubts, type StoreDoubtsOptions } from './store-doubts.ts';
import { WayBack } from './way-back.ts';

/** Interceptors around every activity of a worker, outermost first. */
export function activityInterceptors({
  codeVersion,
  ...options
}: StoreDoubtsOptions & { readonly codeVersion: string }): ActivityInterceptorsFactory[] {
  const log = new RunLog(options.role);
  const doubts = new StoreDoubts(options);
  return [
    () => ({ inbound: new FailureMapping(codeVersion) }),
    () => ({ inbound: doubts }),
    () => ({ inbound: log }),
    () => ({ inbound: new Beating() }),
    () => ({ inbound: new WayBack() }),
    () => ({ inbound: new ActivityFailpoints() }),
  ];
}
