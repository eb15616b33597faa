import { setTimeout as delay } from 'node:timers/promises';
import type { WorkflowHandle } from '@temporalio/client';
import type { RunEvent, RunStatus } from '../workflows/messages.ts';

/** How often the run is asked for news; a query costs its worker a few milliseconds. */
const pollMs = 500;
/** A query that takes longer has nobody to answer it: the orchestrator is being restarted. */
const queryTimeoutMs = 4_000;
/** When one attaches to a run, how much of what went before is told. */
const earlierEventsShown = 5;
/** After this long without a line the run says what it waits for. */
const silenceMs = 10_000;

export interface FollowOptions {
  readonly handle: WorkflowHandle;
  readonly print: (line: string) => void;
  readonly signal: AbortSignal;
  /** Events up to this one have been seen. */
  readonly after?: number;
}

/**
 * Prints every event of a run as it happens, until `signal`; returns the last one's number. Never silent for long: then
 * it says what is waited for.
 */
export async function followRun({ handle, print, signal, after = 0 }: FollowOptions): Promise<number> {
  let seen = after;
  let isFirstLook = true;
  let lastLineAt = Date.now();
  const say = (line: string): void => {
    print(line);
    lastLineAt = Date.now();
  };
  while (!signal.aborted) {
    const events = await ask<RunEvent[]>(handle, 'events', [seen]);
    const fresh = (events ?? []).filter(({ sequence }) => sequence > seen);
    if (events && isFirstLook && fresh.length > earlierEventsShown) {
      say(`the run has been here before; the last of ${fresh.at(-1)!.sequence} events:`);
      fresh.splice(0, fresh.length - earlierEventsShown);
    }
    if (events) isFirstLook = false;
    for (const event of fresh) {
      seen = event.sequence;
      say(event.text);
    }
    if (Date.now() - lastLineAt > silenceMs) say(await describeWaiting(handle, events !== null));
    await delay(pollMs, undefined, { signal }).catch(() => undefined); // aborted: the loop ends
  }
  return seen;
}

/** What happened since the last look. */
export async function printRest(handle: WorkflowHandle, after: number, print: (line: string) => void): Promise<void> {
  for (const event of (await ask<RunEvent[]>(handle, 'events', [after])) ?? []) print(event.text);
}

async function describeWaiting(handle: WorkflowHandle, answers: boolean): Promise<string> {
  if (!answers) return 'waiting on: the orchestrator worker, which does not answer; nothing is lost';
  const status = await ask<RunStatus>(handle, 'status', []);
  if (status?.pausedBecause) return `paused: ${status.pausedBecause}`;
  const retries = await retrying(handle);
  const waiting = (status?.waitingOn ?? []).map(
    ({ what, since }) => `${what} (${Math.round((Date.now() - Date.parse(since)) / 1000)} s)`,
  );
  return `waiting on: ${[...waiting, ...retries].join('; ') || 'the next workflow task'}`;
}

/** Activities that are being tried again, with what went wrong last. */
async function retrying(handle: WorkflowHandle): Promise<string[]> {
  const { raw } = await handle.describe();
  return (raw.pendingActivities ?? [])
    .filter(({ attempt }) => (attempt ?? 1) > 1)
    .map(
      ({ activityType, attempt, lastFailure }) =>
        `${activityType?.name} is tried again (attempt ${attempt}): ${lastFailure?.message ?? 'its worker went away'}`,
    );
}

/** null when nobody answers in time. */
async function ask<T>(handle: WorkflowHandle, query: string, args: unknown[]): Promise<T | null> {
  try {
    return await handle.client.withDeadline(Date.now() + queryTimeoutMs, () =>
      handle.query<T, unknown[]>(query, ...args),
    );
  } catch {
    return null; // No worker, a restarting server, a query that is not registered yet: all say the same, ask again.
  }
}
