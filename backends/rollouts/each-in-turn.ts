/**
 * Begins one after another, so many at once. When one fails no other is begun, `brokenOff` tells of it, and those under way are
 * waited for, so that nothing finished is lost with it. Stopping is no failure.
 */
export async function eachInTurn<T>(
  items: readonly T[],
  {
    atOnce,
    stop,
    brokenOff,
  }: { readonly atOnce: number; readonly stop: AbortSignal; readonly brokenOff: AbortController },
  work: (item: T) => Promise<void>,
): Promise<void> {
  const failures: unknown[] = [];
  const rest = items.values();
  const lane = async (): Promise<void> => {
    for (const item of rest) {
      await work(item).catch((reason: unknown) => {
        failures.push(reason);
        brokenOff.abort();
      });
      if (failures.length > 0 || stop.aborted) return;
    }
  };
  if (!stop.aborted) await Promise.all(Array.from({ length: Math.min(atOnce, items.length) }, lane));
  if (failures.length > 0 && !stop.aborted) throw failures[0];
}
