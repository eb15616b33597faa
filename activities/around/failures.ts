import type { ActivityExecuteInput, ActivityInboundCallsInterceptor } from '@temporalio/worker';
import { activityInfo } from '@temporalio/activity';
import { ApplicationFailure } from '@temporalio/common';
import { RatchetError } from '../../core/errors.ts';
import { BugCount, placeOfBug } from './bugs.ts';

/** Of all activities of this process. */
const bugCount = new BugCount();

/** The one place where our errors become Temporal's: the code is the failure type, refusals are not retried, bugs a few times. */
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

/** Anything that is not one of our own passes unchanged, and is retried. */
export function toFailure(error: unknown): unknown {
  if (!(error instanceof RatchetError)) return error;
  return ApplicationFailure.create({
    type: error.code,
    message: error.message,
    nonRetryable: !error.isRetryable,
    ...(error.cause instanceof Error ? { cause: error.cause } : {}),
    ...(error.retryAfterMs === undefined ? {} : { nextRetryDelay: error.retryAfterMs }),
  });
}
