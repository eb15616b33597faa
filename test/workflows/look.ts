/** Looks and waits for tests of workflows. */
import { setTimeout as delay } from 'node:timers/promises';
import { WorkflowFailedError, WorkflowUpdateFailedError } from '@temporalio/client';
import { ApplicationFailure } from '@temporalio/common';
import { until as untilSo } from '../eventually.ts';
import type { BegunRun } from './server.ts';

/** Long enough that what must not happen would have happened. */
export const aWhileMs = 300;

export function aWhile(): Promise<void> {
  return delay(aWhileMs);
}

/** Many runs are at work side by side; nothing of theirs takes long, but on a busy machine. */
export const patience = { everyMs: 50, withinMs: 4 * 60_000 };

/** Awaits something that comes soon or never: then the test fails, instead of waiting for its file's time limit. */
export async function soon<T>(what: string, work: Promise<T>): Promise<T> {
  const limit = new AbortController();
  const late = delay(patience.withinMs, undefined, { signal: limit.signal }).then(() => {
    throw new Error(`${what} did not come`);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    limit.abort();
    late.catch(() => undefined);
  }
}

/** Waits until something is seen. */
export function until(what: string, look: () => boolean | Promise<boolean>): Promise<void> {
  return untilSo(what, look, patience);
}

export function ascending(numbers: readonly number[]): number[] {
  return numbers.toSorted((a, b) => a - b);
}

/** Failure of a workflow: `TYPE: message` of the root error. */
export async function failureOf(work: Promise<unknown>): Promise<string> {
  try {
    await soon('a failure', work);
  } catch (error) {
    if (!(error instanceof WorkflowFailedError || error instanceof WorkflowUpdateFailedError)) throw error;
    const root = rootOf(error);
    return root instanceof ApplicationFailure ? `${root.type}: ${root.message}` : `${root.name}: ${root.message}`;
  }
  throw new Error('it did not fail');
}

function rootOf(error: Error): Error {
  return error.cause instanceof Error ? rootOf(error.cause) : error;
}

/** How often a run was continued as another execution. */
export async function timesContinued({
  client,
  handle,
  name,
}: Pick<BegunRun, 'client' | 'handle' | 'name'>): Promise<number> {
  let runId = handle.firstExecutionRunId;
  for (let times = 0; ; times++) {
    const { events } = await client.workflow.getHandle(name, runId).fetchHistory();
    const next = events?.at(-1)?.workflowExecutionContinuedAsNewEventAttributes?.newExecutionRunId;
    if (!next) return times;
    runId = next;
  }
}
