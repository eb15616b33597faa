import { setTimeout as delay } from 'node:timers/promises';
import { RatchetError } from '../../core/errors.ts';

const againMs = { first: 200, most: 5_000 };

/** Repeats a write, longer and longer apart, while the store is away or full. */
export async function untilStored<T>(write: () => Promise<T>, signal: AbortSignal): Promise<T> {
  for (let waitMs = againMs.first; ; waitMs = Math.min(waitMs * 2, againMs.most)) {
    try {
      return await write();
    } catch (error) {
      const isWeather = error instanceof RatchetError && ['StoreFull', 'StoreUnavailable'].includes(error.code);
      if (!isWeather || signal.aborted) throw error;
      await delay(waitMs, undefined, { signal }).catch(() => undefined);
    }
  }
}
