import { Context } from '@temporalio/activity';
import type { ActivityExecuteInput, ActivityInboundCallsInterceptor } from '@temporalio/worker';
import { failpoint } from '../../store/failpoints.ts';

/** Failpoints of every activity: before its work, and between its work and the server's knowledge of it. */
export class ActivityFailpoints implements ActivityInboundCallsInterceptor {
  async execute(
    input: ActivityExecuteInput,
    next: (input: ActivityExecuteInput) => Promise<unknown>,
  ): Promise<unknown> {
    const { activityType } = Context.current().info;
    const { isRepeated } = await failpoint(`${activityType}.begun`);
    if (isRepeated) await next(input);
    const result = await next(input);
    return (await failpoint(`${activityType}.done`)).isRepeated ? next(input) : result;
  }
}
