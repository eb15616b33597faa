import type { MeasureSweepRun, MeasuredSweepRun } from '../../core/sweep/sweep.ts';
import { layout } from '../layout.ts';
import { currentLineage, readHead, storeOf } from '../run-access.ts';
import { stepRecords } from './step-records.ts';

/** How far a run of a sweep is, and its metric at a step, as its folder has them. */
export async function rungValue({ run, metric, step }: MeasureSweepRun): Promise<MeasuredSweepRun> {
  if ((await storeOf(run).read(layout.run())) === null) return { step: null, value: null };
  const head = await readHead({ ...run, lineage: await currentLineage(run) });
  if (head === null) return { step: null, value: null };
  const values = (await stepRecords(run)).flatMap((record) => {
    const value = record.metrics[metric.name];
    const isMeant = record.step > step - metric.lastSteps && record.step <= step;
    return isMeant && value !== undefined && Number.isFinite(value) ? [value] : [];
  });
  const sum = values.reduce((total, value) => total + value, 0);
  return { step: head.commit.step, value: values.length === 0 ? null : sum / values.length };
}
