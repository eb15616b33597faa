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
 * Keeps an activity alive while it works, and gives the work a signal to stop. `progress` supplies the details of every
 * heartbeat, also of a last one as the work ends, so that a retry can read them. `say` sends one at once, or shortly
 * after the previous one.
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

/** Interval between heartbeats of an activity with that timeout, and least interval between reports of news. */
function paceFor(timeoutMs: number): { readonly everyMs: number; readonly newsMs: number } {
  const everyMs = Math.min(timeoutMs / heartbeatsInTimeout, heartbeatIntervalMsMax);
  return { everyMs, newsMs: Math.min(everyMs, Math.max(heartbeatThrottleMs, everyMs / newsBetweenHeartbeats)) };
}

/**
 * A process that was suspended may get an activity that was given up long ago and runs elsewhere. The server says so in
 * its answer to a heartbeat; nothing begins before that.
 */
async function untilHeard(signal: AbortSignal): Promise<void> {
  await delay(answerMs, undefined, { signal }).catch(() => signal.throwIfAborted());
}

/** Details of the previous attempt's last heartbeat; undefined in a first attempt. */
export function lastProgress<T>(): T | undefined {
  return Context.current().info.heartbeatDetails as T | undefined;
}

/** Whether an earlier attempt was given up. It may only have been slow, and still be at work. */
export function isRetry(): boolean {
  return attemptHere() > 1;
}

/** Attempt of the activity, from 1. */
export function attemptHere(): number {
  return Context.current().info.attempt;
}

/** Id of the workflow that asked for it; undefined without one. */
export function workflowHere(): string | undefined {
  return Context.current().info.workflowExecution?.workflowId;
}

/**
 * Whether an activity's signal was raised by its worker's shutdown, after which another attempt continues, or by a
 * cancellation.
 */
export function isShutdown(signal: AbortSignal): boolean {
  return signal.reason instanceof Error && signal.reason.message === 'WORKER_SHUTDOWN';
}
