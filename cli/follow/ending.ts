import { WorkflowFailedError, WorkflowNotFoundError } from '@temporalio/client';
import { CancelledFailure } from '@temporalio/common';

/** Signals with which a user stops watching a workflow. */
export interface Leaving {
  /** Raised by Ctrl-C. */
  readonly interrupted: AbortSignal;
  /** Aborted when the processes of another command, to which this one is attached, have ended. */
  readonly gone: AbortSignal;
}

/** Why there is no result: it was left, its processes went away, its server does not know it (any more), it was cancelled, it failed. */
export type Ending = 'interrupted' | 'gone' | 'unknown' | 'cancelled' | 'failed';

/** Classifies an `error` thrown while waiting for a workflow's result. Rethrows any other error. */
export function endingOf(error: unknown, { interrupted, gone }: Leaving): Ending {
  if (interrupted.aborted) return 'interrupted';
  if (gone.aborted) return 'gone';
  if (error instanceof WorkflowNotFoundError) return 'unknown';
  if (!(error instanceof WorkflowFailedError)) throw error;
  return error.cause instanceof CancelledFailure ? 'cancelled' : 'failed';
}
