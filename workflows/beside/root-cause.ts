import { ApplicationFailure } from '@temporalio/workflow';

/**
 * Returns the innermost cause, since Temporal wraps errors of activities and children. A bug report is returned itself, because it says
 * more than its cause.
 */
export function rootCause(error: unknown): Error {
  let root = error instanceof Error ? error : new Error(String(error));
  while (root.cause instanceof Error && !isReport(root)) root = root.cause;
  return root;
}

export function isReport(error: unknown): boolean {
  return error instanceof ApplicationFailure && error.type === 'Bug';
}
