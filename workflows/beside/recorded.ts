import { CancellationScope, ContinueAsNew, isCancellation, log } from '@temporalio/workflow';
import type { Changed, StartedAs } from '../../core/rl/changes.ts';
import { records } from '../options.ts';
import { rootCause } from './root-cause.ts';

/**
 * Does the work of a workflow. If it is cancelled, who asked for that is kept before it ends. `of` null: elsewhere. `as`:
 * what the work is in the record of something else.
 */
export async function recordingItsCancel<Result>(
  of: Changed | null,
  work: () => Promise<Result>,
  as?: StartedAs,
): Promise<Result> {
  try {
    return await work();
  } catch (error) {
    const isCancelled = CancellationScope.current().consideredCancelled && !(error instanceof ContinueAsNew);
    if (of !== null && isCancelled)
      await CancellationScope.nonCancellable(() => orWarned('cancel', records.recordCancel({ of, ...(as && { as }) })));
    throw error;
  }
}

/** Keeps who started this execution. */
export async function recordStart(of: Changed): Promise<void> {
  await orWarned('start', records.recordStart({ of }));
}

/** A record that cannot be written stops nothing. */
async function orWarned(what: string, recording: Promise<void>): Promise<void> {
  try {
    await recording;
  } catch (error) {
    if (isCancellation(error)) throw error;
    log.warn(`${what} is not in the record of changes: ${rootCause(error).message}`);
  }
}
