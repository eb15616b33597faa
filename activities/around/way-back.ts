import type { ActivityExecuteInput, ActivityInboundCallsInterceptor } from '@temporalio/worker';
import { isRecord } from '../../store/objects.ts';
import { withWayBack } from '../../runs/lineages/way-back.ts';

/** Adds to a failed read the newest step that the run can continue from. */
export class WayBack implements ActivityInboundCallsInterceptor {
  async execute(
    input: ActivityExecuteInput,
    next: (input: ActivityExecuteInput) => Promise<unknown>,
  ): Promise<unknown> {
    try {
      return await next(input);
    } catch (error) {
      const run = runOf(input.args[0]);
      throw run ? await withWayBack(run, error) : error;
    }
  }
}

function runOf(argument: unknown): Parameters<typeof withWayBack>[0] | null {
  const run = isRecord(argument) ? argument['run'] : null;
  if (!isRecord(run)) return null;
  const { name, store, lineage } = run;
  return typeof name === 'string' && typeof store === 'string' && typeof lineage === 'string'
    ? { name, store, lineage }
    : null;
}
