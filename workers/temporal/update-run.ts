import {
  ServiceError,
  WorkflowNotFoundError,
  WorkflowUpdateFailedError,
  WorkflowUpdateRPCTimeoutOrCancelledError,
  type WorkflowHandle,
} from '@temporalio/client';
import { RatchetError } from '../../core/errors.ts';
import { type Asking, ownerOf, requireRole } from './who-may.ts';
import { rootMessage } from './root-message.ts';

/** Updates take one argument, or none: null. */
export type Argument = [string | number | Record<string, number> | null];

/** Long enough for a run on a busy machine, short enough for a person at a terminal. */
const answerWithinMs = 30_000;

/**
 * Asks a run to change; returns its own words about what it did. Throws if the file of roles does not let the person do
 * that, or if the run refuses, has ended, or does not answer.
 */
export async function updateRun(
  handle: WorkflowHandle,
  run: string,
  { update, args, ...who }: { readonly update: string; readonly args: Argument } & Asking,
): Promise<string> {
  await requireRole(update, { of: 'run', run, owner: ownerOf(handle) }, who);
  try {
    return await handle.client.withDeadline(Date.now() + answerWithinMs, () =>
      handle.executeUpdate<string, Argument>(update, { args }),
    );
  } catch (error) {
    throw refusalOf(run, update, error);
  }
}

function refusalOf(run: string, update: string, error: unknown): unknown {
  if (error instanceof WorkflowNotFoundError) {
    const message = `The run ${run} is not running; \`npx ratchet-rl status ${run}\` says how far it is.`;
    return new RatchetError('RunNotFound', message, { cause: error });
  }
  if (error instanceof WorkflowUpdateRPCTimeoutOrCancelledError || error instanceof ServiceError) {
    const message = `${run}: no orchestrator answers for the run (${rootMessage(error)}). Once one is there (ratchet dev, or ratchet worker --role orchestrator) it may still hear this ${update}: \`npx ratchet-rl status ${run}\` says what it is doing.`;
    return new RatchetError('ServerUnavailable', message, { cause: error });
  }
  if (!(error instanceof WorkflowUpdateFailedError)) return error;
  const message = rootMessage(error);
  const isUnknown = /has not been registered|unknown update|not found.{0,200}update/i.test(message);
  const why = isUnknown ? `The run ${run} is at work under older code, which has no ${update}. (${message})` : message;
  return new RatchetError('ConfigInvalid', `${run}: nothing changed. ${why}`, { cause: error });
}
