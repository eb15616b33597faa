import type { ActivityExecuteInput, ActivityInboundCallsInterceptor } from '@temporalio/worker';
import { activityInfo } from '@temporalio/activity';
import { ApplicationFailure, TemporalFailure } from '@temporalio/common';
import { RatchetError } from '../../core/errors.ts';
import { tellsContent } from '../../backends/untold.ts';
import { withoutControls } from '../../core/steering.ts';
import { BugCount, placeOfBug } from './bugs.ts';

/** Counts bugs across all activities of this process. */
const bugCount = new BugCount();

/**
 * Converts our errors to Temporal's, in one place: the code becomes the failure type. Refusals are not retried; bugs are retried a few
 * times.
 */
export class FailureMapping implements ActivityInboundCallsInterceptor {
  readonly #codeVersion: string;

  constructor(codeVersion: string) {
    this.#codeVersion = codeVersion;
  }

  async execute(
    input: ActivityExecuteInput,
    next: (input: ActivityExecuteInput) => Promise<unknown>,
  ): Promise<unknown> {
    try {
      const result = await next(input);
      bugCount.forget(activityInfo());
      return result;
    } catch (error) {
      const where = placeOfBug(error);
      if (where === null) {
        bugCount.sawOther(activityInfo());
        throw paced(toFailure(error), activityInfo());
      }
      const counted = bugCount.after(error as Error, where, activityInfo(), this.#codeVersion);
      throw paced(toFailure(counted), activityInfo());
    }
  }
}

/** Milliseconds before a failed activity is tried again. */
const againMs = { first: 200, most: 10_000 };

/**
 * Attempts that fail are further and further apart. Those whose worker died are not (`workflows/options.ts`): such an
 * activity has not failed, and a chunk may meet many deaths.
 */
function paced(error: unknown, { attempt }: { readonly attempt: number }): unknown {
  // A cancellation, in both of its forms.
  const isStopped = error instanceof TemporalFailure && !(error instanceof ApplicationFailure);
  if (isStopped || (error instanceof Error && error.name === 'AbortError')) return error;
  if (error instanceof ApplicationFailure && (error.nonRetryable || error.nextRetryDelay !== undefined)) return error;
  const nextRetryDelay = Math.min(againMs.first * 2 ** Math.min(attempt - 1, 10), againMs.most);
  return ApplicationFailure.fromError(error, { nextRetryDelay });
}

/** Whether a history may have the words of a cause: a parser's quote the file that it read (`backends/untold.ts`). */
function isTold(cause: Error): boolean {
  return tellsContent() || !(cause instanceof SyntaxError);
}

/** Errors that are not ours pass unchanged, so Temporal retries them. */
export function toFailure(error: unknown): unknown {
  if (!(error instanceof RatchetError)) return error;
  return ApplicationFailure.create({
    type: error.code,
    // Terminal programs print histories, so control characters are removed.
    message: withoutControls(error.message),
    nonRetryable: !error.isRetryable,
    ...(error.cause instanceof Error && isTold(error.cause) ? { cause: error.cause } : {}),
    ...(error.retryAfterMs === undefined ? {} : { nextRetryDelay: error.retryAfterMs }),
  });
}
