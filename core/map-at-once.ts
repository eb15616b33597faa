/** What `work` gives for each item, in order, with so many under way at once. The first that fails fails all. */
export async function mapAtOnce<T, R>(
  items: readonly T[],
  atOnce: number,
  work: (item: T) => Promise<R>,
): Promise<R[]> {
  const results: R[] = [];
  const rest = items.entries();
  const lane = async (): Promise<void> => {
    for (const [i, item] of rest) results[i] = await work(item);
  };
  await Promise.all(Array.from({ length: Math.min(atOnce, items.length) }, lane));
  return results;
}
