import type { ActivityExecuteInput, ActivityInboundCallsInterceptor } from '@temporalio/worker';
import { activityInfo } from '@temporalio/activity';
import { ApplicationFailure } from '@temporalio/common';
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
        throw toFailure(error);
      }
      throw toFailure(bugCount.after(error as Error, where, activityInfo(), this.#codeVersion));
    }
  }
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
