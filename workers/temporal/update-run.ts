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
  return askUpdate(handle, { noun: 'run', name: run, look: `npx ratchet-rl status ${run}` }, { update, args });
}

/** A workflow as a person knows it, and the command that says how it stands. */
export interface NamedWorkflow {
  readonly noun: 'run' | 'sweep';
  readonly name: string;
  readonly look: string;
}

/** As `updateRun`, of any workflow, once it is known that the person may. */
export async function askUpdate(
  handle: WorkflowHandle,
  named: NamedWorkflow,
  { update, args }: { readonly update: string; readonly args: Argument },
): Promise<string> {
  try {
    return await handle.client.withDeadline(Date.now() + answerWithinMs, () =>
      handle.executeUpdate<string, Argument>(update, { args }),
    );
  } catch (error) {
    throw refusalOf(named, update, error);
  }
}

function refusalOf({ noun, name, look }: NamedWorkflow, update: string, error: unknown): unknown {
  if (error instanceof WorkflowNotFoundError) {
    const message = `The ${noun} ${name} is not running; \`${look}\` says how far it is.`;
    return new RatchetError('RunNotFound', message, { cause: error });
  }
  if (error instanceof WorkflowUpdateRPCTimeoutOrCancelledError || error instanceof ServiceError) {
    const message = `${name}: no orchestrator answers for the ${noun} (${rootMessage(error)}). Once one is there (ratchet dev, or ratchet worker --role orchestrator) it may still hear this ${update}: \`${look}\` says what it is doing.`;
    return new RatchetError('ServerUnavailable', message, { cause: error });
  }
  if (!(error instanceof WorkflowUpdateFailedError)) return error;
  const message = rootMessage(error);
  const isUnknown = /has not been registered|unknown update|not found.{0,200}update/i.test(message);
  const why = isUnknown
    ? `The ${noun} ${name} is at work under older code, which has no ${update}. (${message})`
    : message;
  return new RatchetError('ConfigInvalid', `${name}: nothing changed. ${why}`, { cause: error });
}
