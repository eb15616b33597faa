/** How to end the processes that were started for this one; nothing where none were. Whoever starts one adds a way. */
export const processesOpen = new Set<() => Promise<void>>();

/** Ends them all; a program does so before it ends itself, or it would wait for them. */
export async function closeProcesses(): Promise<void> {
  const ways = [...processesOpen];
  processesOpen.clear();
  await Promise.all(ways.map((close) => close()));
}
