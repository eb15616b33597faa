import { RatchetError } from '../core/errors.ts';

/** The message at the bottom of a chain of failures: what went wrong, without what it was wrapped in. */
export function rootMessage(error: Error): string {
  let current: Error = error;
  while (current.cause instanceof Error && !(current instanceof RatchetError)) {
    if (current.cause.message === '') break;
    current = current.cause;
  }
  return current.message;
}
