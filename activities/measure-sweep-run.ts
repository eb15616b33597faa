import type { MeasureSweepRun, MeasuredSweepRun } from '../core/sweep/sweep.ts';
import { rungValue } from '../runs/metrics/rung-value.ts';
import { checkStore } from '../store/index.ts';
import { withHeartbeat } from './around/heartbeat.ts';

/** Reads how far a run of a sweep is, and its metric at a step. Changes nothing. */
export async function measureSweepRun(asked: MeasureSweepRun): Promise<MeasuredSweepRun> {
  return withHeartbeat(async () => {
    await checkStore(asked.run.store);
    return rungValue(asked);
  });
}
