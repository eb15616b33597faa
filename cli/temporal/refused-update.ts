import { WorkflowUpdateFailedError } from '@temporalio/client';
import { RatchetError } from '../../core/errors.ts';
import { rootMessage } from '../../workers/temporal/root-message.ts';

/** The refusal of an update by a pool, a sweep or a search, in its own words; any other error unchanged. */
export function refusedUpdate(name: string, error: unknown): unknown {
  if (!(error instanceof WorkflowUpdateFailedError)) return error;
  return new RatchetError('ConfigInvalid', `${name}: nothing changed. ${rootMessage(error)}`, { cause: error });
}
