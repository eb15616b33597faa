const listeners = new WeakMap<AbortSignal, Set<() => void>>();

/**
 * Calls `stop` when the signal is raised; returns a function that undoes this. Thousands of requests share one signal,
 * and an EventTarget searches all its listeners to remove one.
 */
export function onAbort(signal: AbortSignal | undefined, stop: () => void): () => void {
  if (!signal) return () => undefined;
  const known = listeners.get(signal);
  const all = known ?? new Set();
  if (!known) {
    listeners.set(signal, all);
    signal.addEventListener('abort', () => [...all].forEach((listener) => listener()), { once: true });
  }
  all.add(stop);
  return () => all.delete(stop);
}
