import { setTimeout as delay } from 'node:timers/promises';
import { QueryNotRegisteredError, WorkflowFailedError, type WorkflowHandle } from '@temporalio/client';
import { TerminatedFailure } from '@temporalio/common';
import { decodeOptionalFailureToOptionalError } from '@temporalio/common/lib/internal-non-workflow/index.js';
import { memoKeys } from '../core/names.ts';
import type { RunEvent, RunStatus } from '../workflows/messages.ts';

/** How often the run is asked for news; a query costs its worker a few milliseconds. */
const pollMs = 500;
/** A query that takes longer has nobody to answer it: the orchestrator is being restarted. */
const queryTimeoutMs = 4_000;
/** A workflow that has ended is replayed from its first event to answer: seconds, for thousands of them on a busy machine. */
const lastQueryTimeoutMs = 30_000;
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
    const answer = await ask<RunEvent[]>(handle, 'events', [seen]);
    const events = answer.is === 'answer' ? answer.value : null;
    const fresh = (events ?? []).filter(({ sequence }) => sequence > seen);
    if (events && isFirstLook && fresh.length > earlierEventsShown) {
      say(`the run has been here before; the last of ${fresh.at(-1)!.sequence} events:`);
      fresh.splice(0, fresh.length - earlierEventsShown);
    }
    if (events) isFirstLook = false;
    for (const event of fresh) {
      seen = event.sequence;
      say(lineOf(event));
    }
    if (Date.now() - lastLineAt > silenceMs) say(await describeWaiting(handle));
    await delay(pollMs, undefined, { signal }).catch(() => undefined); // aborted: the loop ends
  }
  return seen;
}

/** What happened since the last look of a run that has ended; false when nobody could tell. */
export async function printRest(
  handle: WorkflowHandle,
  after: number,
  print: (line: string) => void,
): Promise<boolean> {
  const rest = await ask<RunEvent[]>(handle, 'events', [after], lastQueryTimeoutMs);
  if (rest.is !== 'answer') return false;
  for (const event of rest.value) print(lineOf(event));
  return true;
}

/** Whether an execution ended because an upgrade took its run over: another one goes on under the same workflow id. */
export async function isTakenOver({ client, workflowId }: WorkflowHandle, ended: unknown): Promise<boolean> {
  if (!(ended instanceof WorkflowFailedError && ended.cause instanceof TerminatedFailure)) return false;
  const { status, memo } = await client.getHandle(workflowId).describe();
  return status.name !== 'TERMINATED' && memo?.[memoKeys.takenOverFrom] !== undefined;
}

/** In one line, what a run waits for. Never throws: whoever does not answer is what it waits for. */
export async function describeWaiting(handle: WorkflowHandle): Promise<string> {
  const answer = await ask<RunStatus>(handle, 'status', []);
  if (answer.is === 'answer' && answer.value.pausedBecause) return `paused: ${answer.value.pausedBecause}`;
  const retries = await retrying(handle);
  if (retries === null) return 'waiting on: the Temporal server, which does not answer; nothing is lost';
  return `waiting on: ${[...waitsOf(answer), ...retries].join('; ') || 'the next workflow task'}`;
}

function waitsOf(answer: Answer<RunStatus>): string[] {
  switch (answer.is) {
    case 'answer':
      return answer.value.waitingOn.map(
        ({ what, since }) => `${what} (${Math.round((Date.now() - Date.parse(since)) / 1000)} s)`,
      );
    case 'not open yet':
      return ['opening the run'];
    case 'silence':
      return ['the orchestrator worker, which does not answer; nothing is lost'];
    default:
      return answer satisfies never;
  }
}

/** Activities that are being tried again, with what went wrong last. The server knows it without any worker; null when it is silent. */
export async function retrying(handle: WorkflowHandle): Promise<string[] | null> {
  try {
    const { raw } = await handle.client.withDeadline(Date.now() + queryTimeoutMs, () => handle.describe());
    const again = (raw.pendingActivities ?? []).filter(({ attempt }) => (attempt ?? 1) > 1);
    return await Promise.all(
      again.map(async ({ activityType, attempt, lastFailure }) => {
        const converter = handle.client.options.loadedDataConverter;
        const failure = await decodeOptionalFailureToOptionalError(converter, lastFailure);
        return `${activityType?.name} is tried again (attempt ${attempt}): ${failure?.message ?? 'its worker went away'}`;
      }),
    );
  } catch {
    return null; // A server that is being restarted, or gone: asked again at the next look.
  }
}

/** `not open yet`: the run listens to questions once it has read its config and its store. */
type Answer<T> =
  { readonly is: 'answer'; readonly value: T } | { readonly is: 'not open yet' } | { readonly is: 'silence' };

async function ask<T>(
  handle: WorkflowHandle,
  query: string,
  args: unknown[],
  timeoutMs = queryTimeoutMs,
): Promise<Answer<T>> {
  try {
    const value = await handle.client.withDeadline(Date.now() + timeoutMs, () =>
      handle.query<T, unknown[]>(query, ...args),
    );
    return { is: 'answer', value };
  } catch (error) {
    return { is: error instanceof QueryNotRegisteredError ? 'not open yet' : 'silence' };
  }
}

function lineOf({ kind, text }: RunEvent): string {
  return kind === 'warning' ? `warning: ${text}` : text;
}
