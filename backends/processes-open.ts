/** How to end what was started for this process elsewhere: processes, models on a server; nothing where none were. Whoever starts one adds a way. */
export const processesOpen = new Set<() => Promise<void>>();

/** Ends them all; a program does so before it ends itself, or it would wait for them. */
export async function closeProcesses(): Promise<void> {
  const ways = [...processesOpen];
  processesOpen.clear();
  await Promise.all(ways.map((close) => close()));
}
