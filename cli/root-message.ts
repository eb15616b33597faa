import { ApplicationFailure } from '@temporalio/common';
import { errorCodes, RatchetError } from '../core/errors.ts';

/** What went wrong, without what it was wrapped in: the first message of ours in a chain of failures, else the one at its bottom. */
export function rootMessage(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  let current: Error = error;
  while (current.cause instanceof Error && !isOurs(current)) {
    if (current.cause.message === '') break;
    current = current.cause;
  }
  return current.message;
}

/** Ours says what to do, also after it has come through Temporal; what caused it does not. */
function isOurs(error: Error): boolean {
  return error instanceof RatchetError || (error instanceof ApplicationFailure && (error.type ?? '') in errorCodes);
}
