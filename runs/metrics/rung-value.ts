import type { MeasureSweepRun, MeasuredSweepRun } from '../../core/sweep/sweep.ts';
import { RatchetError } from '../../core/errors.ts';
import type { RunChange } from '../../core/rl/changes.ts';
import { isLearned } from '../../core/rl/live-settings.ts';
import { readChanges } from '../changes.ts';
import { layout } from '../layout.ts';
import { currentLineage, readHead, storeOf } from '../run-access.ts';
import { stepRecords } from './step-records.ts';

/** How far a run of a sweep is, and its metric at a step, as its folder has them. */
export async function rungValue({ run, metric, step, made }: MeasureSweepRun): Promise<MeasuredSweepRun> {
  const isThere = (await storeOf(run).read(layout.run())) !== null;
  const head = isThere ? await readHead({ ...run, lineage: await currentLineage(run) }) : null;
  if (made !== undefined && (head?.commit.step ?? -1) < made)
    throw new RatchetError(
      'StoreNotSeen',
      `${storeOf(run).uri}: expected the run ${run.name}, which has committed step ${made}, found ${head === null ? 'no commit' : `step ${head.commit.step}`}. Is the store mounted here? It is looked at again.`,
    );
  if (head === null) return { step: null, value: null };
  const values = (await stepRecords(run)).flatMap((record) => {
    const value = record.metrics[metric.name];
    const isMeant = record.step > step - metric.lastSteps && record.step <= step;
    return isMeant && value !== undefined && Number.isFinite(value) ? [value] : [];
  });
  const sum = values.reduce((total, value) => total + value, 0);
  const changed = await changedBefore(run, step);
  return {
    step: head.commit.step,
    value: values.length === 0 ? null : sum / values.length,
    ...(changed.length === 0 ? {} : { changed }),
  };
}

/** What people changed of what a run learned up to a step, oldest first. A rewind takes back what was changed since. */
async function changedBefore(run: MeasureSweepRun['run'], before: number): Promise<string[]> {
  const { changes } = await readChanges({ ...run, kind: 'run' });
  let kept: RunChange[] = [];
  for (const change of changes) {
    if (change.what === 'rewind') kept = kept.filter(({ step }) => (step ?? 0) < Number(change.asked));
    else kept.push(change);
  }
  return kept.flatMap(({ what, asked, step }) => {
    if ((what !== 'set' && what !== 'adopt-prompt') || (step !== null && step >= before)) return [];
    const set = asked.split(' ').filter((pair) => isLearned(pair.split('=')[0]!));
    if (what === 'set' && set.length === 0) return [];
    const told = what === 'set' ? set.join(' ') : `${what} ${asked}`.trim();
    return [step === null ? told : `${told} after step ${step}`];
  });
}
