import type { ActivityExecuteInput, ActivityInboundCallsInterceptor } from '@temporalio/worker';
import { ApplicationFailure } from '@temporalio/common';
import { RatchetError } from '../../core/errors.ts';

/** The one place where our errors become Temporal's: the code is the failure type, refusals are not retried. */
export class FailureMapping implements ActivityInboundCallsInterceptor {
  async execute(
    input: ActivityExecuteInput,
    next: (input: ActivityExecuteInput) => Promise<unknown>,
  ): Promise<unknown> {
    try {
      return await next(input);
    } catch (error) {
      throw toFailure(error);
    }
  }
}

/** Anything that is not one of our own passes unchanged: a bug is retried until it is mended. */
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
