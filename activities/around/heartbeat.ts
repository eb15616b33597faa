import { setTimeout as delay } from 'node:timers/promises';
import { Context } from '@temporalio/activity';
import {
  heartbeatIntervalMsMax,
  heartbeatsInTimeout,
  heartbeatThrottleMs,
  newsBetweenHeartbeats,
} from '../../core/limits.ts';

/** The server's answer to a heartbeat takes a few milliseconds. */
const answerMs = 250;

/**
 * Keeps an activity alive while it works; the work is told when it should stop. What `progress` says goes with every
 * heartbeat, the last one as the work ends, so that a retry can read it. `say` says it at once, or a little later where it was said just before.
 */
export async function withHeartbeat<T>(
  work: (signal: AbortSignal, say: () => void) => Promise<T>,
  progress?: () => unknown,
): Promise<T> {
  const context = Context.current();
  const { heartbeatTimeoutMs: timeoutMs = Infinity, currentAttemptScheduledTimestampMs: scheduledAt } = context.info;
  const { everyMs, newsMs } = paceFor(timeoutMs);
  let beatAt = -Infinity;
  let news: NodeJS.Timeout | undefined;
  const beat = (): void => {
    clearTimeout(news);
    news = undefined;
    beatAt = performance.now();
    context.heartbeat(progress?.());
  };
  const say = (): void => {
    const waitMs = beatAt + newsMs - performance.now();
    if (waitMs <= 0) beat();
    else news ??= setTimeout(beat, waitMs);
  };
  const timer = setInterval(beat, everyMs);
  try {
    beat();
    if (Date.now() - scheduledAt > timeoutMs) await untilHeard(context.cancellationSignal);
    return await work(context.cancellationSignal, say);
  } finally {
    clearInterval(timer);
    clearTimeout(news);
    if (progress) beat();
  }
}

/** How often an activity with that timeout is heard of, and how often at most it says what is new. */
function paceFor(timeoutMs: number): { readonly everyMs: number; readonly newsMs: number } {
  const everyMs = Math.min(timeoutMs / heartbeatsInTimeout, heartbeatIntervalMsMax);
  return { everyMs, newsMs: Math.min(everyMs, Math.max(heartbeatThrottleMs, everyMs / newsBetweenHeartbeats)) };
}

/**
 * A process that slept may be handed what was given up long ago, beside the attempt that took its place. The server says so
 * when it is answered; until then nothing is begun.
 */
async function untilHeard(signal: AbortSignal): Promise<void> {
  await delay(answerMs, undefined, { signal }).catch(() => signal.throwIfAborted());
}

/** What the attempt before said with its last heartbeat; undefined in a first attempt. */
export function lastProgress<T>(): T | undefined {
  return Context.current().info.heartbeatDetails as T | undefined;
}

/** Why an activity's signal was raised: its worker shuts down and the next one goes on, or it is to end. */
export function isShutdown(signal: AbortSignal): boolean {
  return signal.reason instanceof Error && signal.reason.message === 'WORKER_SHUTDOWN';
}
