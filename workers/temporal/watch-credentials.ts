import { isDeepStrictEqual } from 'node:util';
import type { TemporalSettings } from './temporal-settings.ts';

/**
 * Interval between looks at files with a key or certificates: well within the minute for which a worker tolerates
 * refusals.
 */
const lookMs = 10_000;

/**
 * Uses a changed key or certificate without a restart. A failure to read or connect is reported once, and retried:
 * files are replaced one after another. Ends with the process, or with `stop`.
 */
export function watchCredentials(
  temporal: TemporalSettings,
  take: (settings: TemporalSettings) => Promise<void>,
  { say, everyMs = lookMs }: { readonly say: (line: string) => void; readonly everyMs?: number },
): { stop(): void } {
  const { reread } = temporal;
  if (reread === null) return { stop: () => undefined };
  let current = temporal;
  let said = '';
  let isLooking = false;
  const look = async (): Promise<void> => {
    try {
      const found = reread();
      if (isDeepStrictEqual(found.tls, current.tls) && found.apiKey === current.apiKey) return;
      await take(found);
      current = found;
      said = '';
      say('the credentials for Temporal were changed: they are in use');
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      if (why !== said) say(`the credentials for Temporal were changed and are not in use yet: ${why}`);
      said = why;
    }
  };
  const timer = setInterval(() => {
    if (isLooking) return;
    isLooking = true;
    void look().finally(() => (isLooking = false));
  }, everyMs);
  timer.unref();
  return { stop: () => clearInterval(timer) };
}
