import { ApplicationFailure } from '@temporalio/workflow';

/** What a failure came from: Temporal wraps what an activity or a child threw. A report of a bug says all, and what it came from less. */
export function rootCause(error: unknown): Error {
  let root = error instanceof Error ? error : new Error(String(error));
  while (root.cause instanceof Error && !isReport(root)) root = root.cause;
  return root;
}

export function isReport(error: unknown): boolean {
  return error instanceof ApplicationFailure && error.type === 'Bug';
}
