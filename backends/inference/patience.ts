import { setTimeout as delay } from 'node:timers/promises';
import { RatchetError } from '../../core/errors.ts';
import { inferencePatienceMs } from '../../core/limits.ts';

/** Wait between attempts. The first retry is immediate, for a version that was just loaded. */
const firstWaitMs = 100;
const waitMsMax = 2_000;

/**
 * Retries while a server does not answer. Longer trouble is thrown to the caller, and so is the last error when
 * `signal` is raised between two attempts.
 */
export async function askPatiently<T>(signal: AbortSignal | undefined, ask: () => Promise<T>): Promise<T> {
  const giveUpAt = performance.now() + inferencePatienceMs;
  for (let waitMs = firstWaitMs; ; waitMs = Math.min(waitMs * 2, waitMsMax)) {
    try {
      return await ask();
    } catch (error) {
      const isWeather = error instanceof RatchetError && error.isRetryable && error.code !== 'OutOfMemory';
      const mayAskAgain = isWeather && performance.now() < giveUpAt;
      if (!mayAskAgain || signal?.aborted) throw error;
      const isLoaded = error.code === 'VersionNotHeld' && waitMs === firstWaitMs;
      await delay(isLoaded ? 0 : waitMs, undefined, signal ? { signal } : {}).catch(() => {
        throw error; // stopped: the last error says more
      });
    }
  }
}
