import type { ActivityInterceptorsFactory } from '@temporalio/worker';
import { Beating } from './beating.ts';
import { ActivityFailpoints } from './failpoint-interceptor.ts';
import { FailureMapping } from './failures.ts';
import { RunLog } from './run-log.ts';
import { WayBack } from './way-back.ts';

/** What every activity of a worker is wrapped in, from the outside in. */
export function activityInterceptors(
  role: ConstructorParameters<typeof RunLog>[0],
  codeVersion: string,
): ActivityInterceptorsFactory[] {
  const log = new RunLog(role);
  return [
    () => ({ inbound: new FailureMapping(codeVersion) }),
    () => ({ inbound: log }),
    () => ({ inbound: new Beating() }),
    () => ({ inbound: new WayBack() }),
    () => ({ inbound: new ActivityFailpoints() }),
  ];
}
