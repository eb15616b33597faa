import { type Client, type ScheduleHandle, ScheduleNotFoundError } from '@temporalio/client';
import type { ScheduleChange } from '../../activities/record-change.ts';
import { scheduleStoreMemo } from '../../core/names.ts';
import { resolveStoreUri } from '../../store/index.ts';
import { rootMessage } from '../../workers/temporal/root-message.ts';
import { temporalTrouble } from '../../workers/temporal/temporal-trouble.ts';
import { tellScheduleChange } from '../../workers/temporal/tell-schedule-change.ts';
import type { EvaluateNewestInput } from '../../workflows/evaluate-newest.ts';
import { printAside } from '../output/print.ts';
import { defaultStore } from '../stored/run-place.ts';

/** Where changes of a schedule are kept: beside its run, else where runs are. */
export function storeOfChanges({ run }: Pick<EvaluateNewestInput, 'run'>, typed?: string): string {
  return run?.store ?? resolveStoreUri(typed ?? defaultStore, process.cwd());
}

/**
 * The same, as the schedule says it. One of an earlier version does not say its store. null for one of another key, which
 * cannot be read, and is changed all the same.
 */
export async function placesOfChanges(schedule: ScheduleHandle): Promise<Pick<ScheduleChange, 'store' | 'run'> | null> {
  const found = await schedule.describe().catch((error: unknown) => {
    if (error instanceof ScheduleNotFoundError || temporalTrouble(error) !== error) throw error;
    printAside(`${schedule.scheduleId} cannot be read, and its change will be in no record: ${rootMessage(error)}`);
    return null;
  });
  if (found === null) return null;
  const { memo = {} } = found;
  const run = (memo['ratchet_eval'] as EvaluateNewestInput | undefined)?.run ?? null;
  const store = memo[scheduleStoreMemo];
  return { store: typeof store === 'string' ? store : storeOfChanges({ run }), run: run?.name ?? null };
}

/** Has a change recorded. The schedule was changed: a change that cannot be recorded is no failure of the command. */
export async function recordIt(client: Client, change: ScheduleChange): Promise<void> {
  try {
    await tellScheduleChange(client, change);
  } catch (error) {
    printAside(`${change.what} of ${change.schedule} is not in the record of changes: ${rootMessage(error)}`);
  }
}
