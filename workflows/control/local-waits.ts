import { ActivityFailure, ApplicationFailure, isCancellation, sleep, TemporalFailure } from '@temporalio/workflow';
import { nextWaitMs } from '../../core/patience.ts';

/** After the first attempt at a small thing that cannot be done at the moment. */
const firstMs = 200;

/** What a local activity failed with, while it is tried again. Temporal does not show it as it does for the others. */
export interface LocalWait {
  readonly what: string;
  readonly since: string;
}

/** Of this execution, oldest first. */
const waits = new Map<number, LocalWait>();
let tickets = 0;

export function localWaits(): LocalWait[] {
  return [...waits.values()];
}

/** The same activities, asked until they work or refuse; between attempts the run can be asked what it waits for. */
export function patiently<Activities extends object>(activities: Activities): Activities {
  return new Proxy(activities, {
    get(target, name) {
      const ask = Reflect.get(target, name) as (...args: unknown[]) => Promise<unknown>;
      return (...args: unknown[]) => untilItWorks(String(name), () => ask(...args));
    },
  });
}

async function untilItWorks<T>(name: string, ask: () => Promise<T>): Promise<T> {
  const ticket = tickets++;
  const since = new Date().toISOString();
  try {
    for (let waitMs = 0, waitedMs = 0; ;) {
      try {
        return await ask();
      } catch (error) {
        const failure = failureWorthAskingAgain(error);
        if (failure === null) throw error;
        waits.set(ticket, { what: `${name} is tried again: ${failure}`, since });
        waitMs = nextWaitMs({ firstMs, waitMs, waitedMs });
        waitedMs += waitMs;
        await sleep(waitMs);
      }
    }
  } finally {
    waits.delete(ticket);
  }
}

/** What it failed with; null when it was cancelled, refused, or failed here and not there. */
function failureWorthAskingAgain(error: unknown): string | null {
  const failure = error instanceof ActivityFailure ? error.cause : error;
  if (isCancellation(error) || !(failure instanceof TemporalFailure)) return null;
  if (failure instanceof ApplicationFailure && failure.nonRetryable === true) return null;
  return failure.message;
}
