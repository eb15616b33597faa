/**
 * Functions that end what this process started elsewhere: processes, models on a server. Code that starts one adds a
 * function.
 */
export const processesOpen = new Set<() => Promise<void>>();

/** Ends them all. A program must call it before it ends, or it would wait for them. */
export async function closeProcesses(): Promise<void> {
  const ways = [...processesOpen];
  processesOpen.clear();
  await Promise.all(ways.map((close) => close()));
}
