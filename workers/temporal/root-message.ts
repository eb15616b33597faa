import { ApplicationFailure } from '@temporalio/common';
import { errorCodes, RatchetError } from '../../core/errors.ts';

/** The root cause without its wrappers: the first of our messages in a chain of failures, else the innermost one. */
export function rootMessage(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  let current: Error = error;
  while (current.cause instanceof Error && !isOurs(current)) {
    if (current.cause.message === '') break;
    current = current.cause;
  }
  return current.message;
}

/** Our errors say what to do, even after passing through Temporal; their causes do not. */
function isOurs(error: Error): boolean {
  return error instanceof RatchetError || (error instanceof ApplicationFailure && (error.type ?? '') in errorCodes);
}
