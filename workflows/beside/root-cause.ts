/** What a failure came from: Temporal wraps what an activity or a child threw. */
export function rootCause(error: unknown): Error {
  let root = error instanceof Error ? error : new Error(String(error));
  while (root.cause instanceof Error) root = root.cause;
  return root;
}
