import { inspect } from 'node:util';
import { setTimeout as delay } from 'node:timers/promises';

/** Far more than anything takes on a busy machine, and well before the runner ends the file, which would say nothing. */
const patienceMs = 5 * 60_000;

/** Looks until it sees what is wanted; a test that would wait for ever fails with what was seen last. */
export async function eventually<Seen>(
  what: string,
  look: () => Promise<Seen>,
  isWanted: (seen: Seen) => boolean,
  { everyMs = 50, withinMs = patienceMs }: { readonly everyMs?: number; readonly withinMs?: number } = {},
): Promise<Seen> {
  const start = Date.now();
  for (;;) {
    const seen = await look();
    if (isWanted(seen)) return seen;
    if (Date.now() - start > withinMs) throw new Error(`${what} did not come; last seen: ${inspect(seen)}`);
    await delay(everyMs);
  }
}

/** Looks until it is so. */
export async function until(
  what: string,
  isSo: () => unknown,
  pace: { readonly everyMs?: number; readonly withinMs?: number } = {},
): Promise<void> {
  await eventually(what, async () => await isSo(), Boolean, pace);
}
