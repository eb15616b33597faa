import { setTimeout as delay } from 'node:timers/promises';
import { QueryNotRegisteredError, WorkflowFailedError, type WorkflowHandle } from '@temporalio/client';
import { TerminatedFailure } from '@temporalio/common';
import { memoKeys } from '../../core/names.ts';
import type { RunEvent, RunStatus } from '../../workflows/control/messages.ts';
import type { evaluate } from '../../workflows/evaluate.ts';
import { onOneLine } from '../output/plain-text.ts';
import { type EvaluationProgress, evaluationProgress } from '../eval/evaluation-progress.ts';
import { type PendingActivity, pendingActivities, pendingWork } from '../temporal/pending-work.ts';
import { whyStuck } from '../../workers/temporal/why-stuck.ts';

/** Interval between queries for events; a query costs its worker a few milliseconds. */
const pollMs = 1_000;
/** Number of looks between queries to the server for retries and progress. */
const looksPerDescribe = 2;
/** A slower query has no worker to answer it: the orchestrator is being restarted. */
const queryTimeoutMs = 4_000;
/** An ended workflow is replayed from its first event to answer: seconds, for thousands of events on a busy machine. */
const lastQueryTimeoutMs = 30_000;
/** Number of earlier events printed when attaching to a run. */
const earlierEventsShown = 5;
/** Silence after which the wait is printed. */
const silenceMs = 10_000;

/** Characters of a pause's reason in the repeated line. */
const pauseCharsShown = 100;

/** Receiver of a run's events: lines, NDJSON, or a live view. */
export interface Follower {
  /** Prints a line; `bold` is the part to highlight. */
  readonly say: (line: string, bold?: string) => void;
  readonly event: (event: RunEvent) => void;
  /** Receives events from before the attach that are not printed. */
  readonly earlier?: (events: readonly RunEvent[]) => void;
  /** Called after a while without an event. */
  readonly waiting: (waiting: Waiting) => void;
  /** Receives a snapshot every second. A follower with this needs no `waiting`: the snapshot includes the wait. */
  readonly snapshot?: (snapshot: RunSnapshot) => void;
}

/** A run as it stood at one moment. */
export interface RunSnapshot {
  readonly is: Answer<RunStatus>['is'];
  /** Newest answer; null before the first. */
  readonly status: RunStatus | null;
  /** Activities under way, as the server knows them; null when it is silent. */
  readonly pending: readonly PendingActivity[] | null;
  /** Evaluations under way; missing when they were not asked. */
  readonly evaluations?: readonly EvaluationProgress[];
  /** Why the workflow is stuck, if it does not answer and Temporal knows the reason. */
  readonly stuck?: string | null;
}

interface FollowOptions extends Follower {
  readonly handle: WorkflowHandle;
  readonly signal: AbortSignal;
  /** Events up to this one have been seen. */
  readonly after?: number;
  /** The execution is older than the command: of its earlier events the last few are printed. Else all are news. */
  readonly isAttached: boolean;
}

/**
 * Emits every event of a run as it happens, until `signal`; returns the last event's number. After a silence it emits
 * what the run waits for.
 */
export async function followRun(options: FollowOptions): Promise<number> {
  const { handle, say, event: tell, earlier, waiting, snapshot, signal, after = 0, isAttached } = options;
  let seen = after;
  let mayBeHistory = isAttached;
  let lastToldAt = Date.now();
  let status: RunStatus | null = null;
  let pending: readonly PendingActivity[] | null = [];
  let evaluations: readonly EvaluationProgress[] = [];
  let stuck: string | null = null;
  for (let looks = 0; !signal.aborted; looks++) {
    if (snapshot && looks % looksPerDescribe === 0) {
      const work = await pendingWork(handle, queryTimeoutMs);
      pending = work?.activities ?? null;
      evaluations = await evaluationsOf(handle, work?.evaluations ?? []);
    }
    const [news, stands] = await Promise.all([askEvents(handle, seen), ask<RunStatus>(handle, 'status', [])]);
    const fresh = (news.is === 'answer' ? news.value : []).filter(({ sequence }) => sequence > seen);
    if (mayBeHistory && fresh.length > earlierEventsShown) {
      say(`the last ${earlierEventsShown} of ${fresh.at(-1)!.sequence} events so far:`);
      const untold = fresh.splice(0, fresh.length - earlierEventsShown);
      earlier?.(untold);
    }
    if (news.is === 'answer') mayBeHistory = false;
    for (const event of fresh) {
      seen = event.sequence;
      tell(event);
      lastToldAt = Date.now();
    }
    if (stands.is === 'answer') status = stands.value;
    if (snapshot && looks % looksPerDescribe === 0) stuck = await stuckText(handle, stands.is);
    snapshot?.({ is: stands.is, status, pending, evaluations, stuck });
    if (!snapshot && Date.now() - lastToldAt > silenceMs) {
      waiting(await whatItWaitsFor(handle));
      lastToldAt = Date.now();
    }
    await delay(pollMs, undefined, { signal }).catch(() => undefined); // aborted: the loop ends
  }
  return seen;
}

/** A version sampled and greedy are two evaluations; one that does not answer is left out. */
async function evaluationsOf({ client }: WorkflowHandle, ids: readonly string[]): Promise<EvaluationProgress[]> {
  const found = await Promise.all(ids.map((id) => evaluationProgress(client.getHandle<typeof evaluate>(id))));
  return found.filter((one) => one !== null);
}

/** Emits the remaining events of an ended run and returns its status; null when it cannot be read. */
export async function tellRest(
  handle: WorkflowHandle,
  after: number,
  { event: tell, snapshot }: Follower,
): Promise<RunStatus | null> {
  const rest = await askEvents(handle, after, lastQueryTimeoutMs);
  if (rest.is === 'answer') for (const event of rest.value) tell(event);
  const stands = await ask<RunStatus>(handle, 'status', [], lastQueryTimeoutMs);
  if (stands.is !== 'answer') return null;
  const status = stands.value;
  // A cancelled or failed workflow could not update its phase itself.
  const ended: RunStatus = { ...status, phase: status.phase === 'finished' ? 'finished' : 'stopped' };
  snapshot?.({ is: 'answer', status: ended, pending: [] });
  return status;
}

/** Whether another execution continues under the same workflow id, after an upgrade or a reset. */
export async function isTakenOver({ client, workflowId }: WorkflowHandle, ended: unknown): Promise<boolean> {
  if (!(ended instanceof WorkflowFailedError && ended.cause instanceof TerminatedFailure)) return false;
  const { status, memo } = await client.getHandle(workflowId).describe();
  return status.name === 'RUNNING' || (status.name !== 'TERMINATED' && memo?.[memoKeys.takenOverFrom] !== undefined);
}

/** Reasons why a run makes no progress now. */
export interface Waiting {
  readonly pausedBecause: string | null;
  /** The last committed step; null when it is not known. */
  readonly step: number | null;
  readonly on: readonly WaitingOn[];
}

export interface WaitingOn {
  readonly what: string;
  /** ISO time; null when it is not known. */
  readonly since: string | null;
  /** Failure of its last attempt while it is being retried; else null. */
  readonly lastFailure: string | null;
  /** When it is tried again, ISO time; null when it is at work. */
  readonly nextAt: string | null;
}

/** The run's wait in one line. Never throws: a process that does not answer is the wait. */
export async function describeWaiting(handle: WorkflowHandle): Promise<string> {
  return waitingLine(handle.workflowId, await whatItWaitsFor(handle));
}

export function waitingLine(run: string, { pausedBecause, on }: Waiting): string {
  if (pausedBecause !== null) {
    // Shortened, since it repeats; the full reason was printed when the pause began.
    const because = onOneLine(pausedBecause);
    const shown = because.length <= pauseCharsShown ? because : `${because.slice(0, pauseCharsShown)}…`;
    return `still paused, until npx ratchet-rl resume ${run}: ${shown}`;
  }
  const parts = on.map(({ what, since, lastFailure }) => {
    if (lastFailure !== null) return `${what}: ${lastFailure}`;
    return since === null ? what : `${what} (${Math.round((Date.now() - Date.parse(since)) / 1000)} s)`;
  });
  return `waiting on: ${parts.join('; ') || 'the next workflow task'}`;
}

/** Never throws: a process that does not answer is the wait. */
async function whatItWaitsFor(handle: WorkflowHandle): Promise<Waiting> {
  const answer = await ask<RunStatus>(handle, 'status', []);
  return waitingOf(
    answer.is,
    answer.is === 'answer' ? answer.value : null,
    await pendingActivities(handle, queryTimeoutMs),
    await stuckText(handle, answer.is),
  );
}

/** null if the workflow answers, or if the server is restarting and does not know the reason. */
async function stuckText(handle: WorkflowHandle, is: RunSnapshot['is']): Promise<string | null> {
  if (is === 'answer') return null;
  const stuck = await whyStuck(handle, handle.workflowId).catch(() => null);
  return stuck === null || stuck.is === 'nobody there' ? null : stuck.text;
}

export function waitingOf(
  is: RunSnapshot['is'],
  status: RunStatus | null,
  pending: readonly PendingActivity[] | null,
  stuck: string | null = null,
): Waiting {
  const pausedBecause = is === 'answer' ? (status?.pausedBecause ?? null) : null;
  const step = status?.step ?? null;
  const simply = (what: string): WaitingOn => ({ what, since: null, lastFailure: null, nextAt: null });
  if (pending === null) {
    return { pausedBecause, step, on: [simply('the Temporal server, which does not answer; nothing is lost')] };
  }
  const retries = pending.flatMap((activity) => asTrouble(activity) ?? []);
  if (stuck !== null) return { pausedBecause, step, on: [simply(stuck), ...retries] };
  switch (is) {
    case 'answer':
      return {
        pausedBecause,
        step,
        on: [...(status?.waitingOn ?? []).map((wait) => ({ ...wait, lastFailure: null, nextAt: null })), ...retries],
      };
    case 'not open yet':
      return { pausedBecause, step, on: [simply('opening the run'), ...retries] };
    case 'silence':
      return {
        pausedBecause,
        step,
        on: [simply('the orchestrator worker, which does not answer; nothing is lost'), ...retries],
      };
    default:
      return is satisfies never;
  }
}

/** Obstacles of a run that has not answered yet; empty when unknown. */
export function troubleOf({ pending, stuck }: RunSnapshot): string {
  const retries = (pending ?? []).flatMap((activity) => asTrouble(activity) ?? []);
  return [...(stuck == null ? [] : [stuck]), ...retries.map(({ what, lastFailure }) => `${what}: ${lastFailure}`)].join(
    '; ',
  );
}

/** Obstacle of an activity: the wait in its heartbeat, or the failure of its previous attempt. */
function asTrouble({ name, attempt, lastFailure, isPassedOn, nextAt, waitsFor }: PendingActivity): WaitingOn | null {
  if (waitsFor != null && nextAt === null) return { what: `${name} waits`, since: null, lastFailure: waitsFor, nextAt };
  if (attempt <= 1 || isPassedOn === true) return null;
  return {
    what: `${name} is tried again (attempt ${attempt})`,
    since: null,
    lastFailure: lastFailure === null || isSilence(lastFailure) ? 'its worker went away' : lastFailure,
    nextAt,
  };
}

/** Temporal's message for a worker that stopped sending heartbeats. */
function isSilence(failure: string): boolean {
  return /^activity heartbeat timeout$/i.test(failure);
}

/**
 * Retried activities with their last failure, and those that wait for a server elsewhere. The Temporal server knows
 * them without any worker; null when it does not answer.
 */
export async function retrying(handle: WorkflowHandle): Promise<string[] | null> {
  const pending = await pendingActivities(handle, queryTimeoutMs);
  return (
    pending &&
    pending.flatMap((activity) => asTrouble(activity) ?? []).map(({ what, lastFailure }) => `${what}: ${lastFailure}`)
  );
}

/** `not open yet`: the run answers queries once it has read its config and its store. */
type Answer<T> =
  | { readonly is: 'answer'; readonly value: T }
  | { readonly is: 'not open yet' }
  | { readonly is: 'silence' };

const askEvents = (handle: WorkflowHandle, after: number, timeoutMs?: number): Promise<Answer<readonly RunEvent[]>> =>
  ask(handle, 'events', [after], timeoutMs);

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

/** An event as one line. */
export function lineOf({ kind, text }: RunEvent): string {
  return onOneLine(kind === 'warning' ? `warning: ${text}` : text);
}
