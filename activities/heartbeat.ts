import { Context } from '@temporalio/activity';
import { heartbeatIntervalMs } from '../core/limits.ts';

/** Keeps an activity alive while it works; the work is told when it should stop. */
export async function withHeartbeat<T>(work: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const context = Context.current();
  const timer = setInterval(() => context.heartbeat(), heartbeatIntervalMs);
  try {
    return await work(context.cancellationSignal);
  } finally {
    clearInterval(timer);
  }
}
