/**
 * The same function, run once at a time. Callers that come while it runs share the next run: each gets what was so after
 * it asked, however many ask.
 */
export function sharedNext<T>(run: () => Promise<T>): () => Promise<T> {
  let running: Promise<unknown> = Promise.resolve();
  let next: Promise<T> | null = null;
  return () => {
    next ??= running.then(() => {
      next = null;
      const now = run();
      running = now.catch(() => undefined); // its callers get it
      return now;
    });
    return next;
  };
}
