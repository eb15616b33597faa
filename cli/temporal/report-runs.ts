import { setTimeout as delay } from 'node:timers/promises';
import { type Client, WorkflowFailedError } from '@temporalio/client';
import { onOneLine } from '../output/plain-text.ts';
import { askedIn, listWorkflows, memoOf } from '../../workers/temporal/list-workflows.ts';
import { rootMessage } from '../../workers/temporal/root-message.ts';

/** State of a run in Temporal's list of workflows. */
export interface RunStanding {
  readonly state: 'running' | 'paused' | 'finished' | 'failed' | 'cancelled';
  readonly step: number | null;
  /** Reason of its pause or failure. */
  readonly why: string | null;
}

/** Interval between looks at the list. */
const lookMs = 3_000;
/** Characters shown of such a reason; `ratchet status RUN` prints all of it. */
const whyCharsShown = 300;

/**
 * Prints changes of all runs until `signal`: the running ones at once, then each that begins, pauses, resumes or ends.
 */
export async function reportRuns(client: Client, say: (line: string) => void, signal: AbortSignal): Promise<void> {
  const since = new Date();
  let before: ReadonlyMap<string, RunStanding> | null = null;
  const unreadable = new Set<string>();
  const sayOnce = (run: string, why: string): void => {
    if (!unreadable.has(run)) say(`${run} cannot be read, and nothing more is said of it: ${why}`);
    unreadable.add(run);
  };
  while (!signal.aborted) {
    try {
      const now = await runStandings(client, since, sayOnce);
      for (const line of before === null ? firstLines(now) : changes(before, now)) say(line);
      before = now;
    } catch {
      // The server is being restarted, which its supervisor reports.
    }
    await delay(lookMs, undefined, { signal }).catch(() => undefined); // the command is ending
  }
}

/**
 * States of runs that are open, or ended after `since`, by workflow. Without those of another program, or of another key,
 * which `unreadable` gets.
 */
export async function runStandings(
  client: Client,
  since: Date,
  unreadable: (run: string, why: string) => void = () => undefined,
): Promise<Map<string, RunStanding>> {
  const found = new Map<string, RunStanding>();
  const query = `WorkflowType='trainRun' AND (ExecutionStatus='Running' OR CloseTime>'${since.toISOString()}')`;
  for await (const listed of listWorkflows(client, query, 100)) {
    const { workflowId, runId, status } = listed;
    // The newest first: one that continued as new, or was started again, is one run.
    if (found.has(workflowId) || status.name === 'CONTINUED_AS_NEW') continue;
    const memo = await memoOf(client, listed.raw, (why) => unreadable(workflowId, why));
    if (memo === null) continue;
    const step = typeof memo['step'] === 'number' ? memo['step'] : null;
    const paused = askedIn(memo)?.pausedBecause ?? null;
    if (status.name === 'RUNNING') {
      found.set(workflowId, { state: paused === null ? 'running' : 'paused', step, why: paused });
      continue;
    }
    const state = status.name === 'COMPLETED' ? 'finished' : status.name === 'CANCELLED' ? 'cancelled' : 'failed';
    found.set(workflowId, { state, step, why: state === 'failed' ? await whyFailed(client, workflowId, runId) : null });
  }
  return found;
}

async function whyFailed(client: Client, workflowId: string, runId: string): Promise<string | null> {
  try {
    await client.workflow.getHandle(workflowId, runId, { followRuns: false }).result();
    return null;
  } catch (error) {
    if (error instanceof WorkflowFailedError) return rootMessage(error);
    throw error;
  }
}

export function firstLines(runs: ReadonlyMap<string, RunStanding>): string[] {
  return [...runs].map(([run, standing]) =>
    standing.state === 'running' ? `${run} continues${afterStep(standing)}` : lineOf(run, standing),
  );
}

/** A line for each run whose state has changed; steps alone are not printed. */
export function changes(before: ReadonlyMap<string, RunStanding>, now: ReadonlyMap<string, RunStanding>): string[] {
  return [...now].flatMap(([run, standing]) => {
    const was = before.get(run);
    if (was?.state === standing.state && was.why === standing.why) return [];
    if (standing.state === 'running')
      return [`${run} ${was === undefined ? 'begins' : `continues${afterStep(standing)}`}`];
    return [lineOf(run, standing)];
  });
}

function lineOf(run: string, standing: RunStanding): string {
  const { state, why } = standing;
  const because = why === null ? '' : `: ${onOneLine(why).slice(0, whyCharsShown)}`;
  switch (state) {
    case 'paused':
      return `${run} is paused${afterStep(standing)}${because}   (npx ratchet-rl status ${run})`;
    case 'failed':
      return `${run} failed${afterStep(standing)}${because}`;
    case 'finished':
      return `${run} has ended${afterStep(standing)}   (npx ratchet-rl status ${run})`;
    case 'cancelled':
      return `${run} was cancelled${afterStep(standing)}`;
    case 'running':
      return `${run} is running${afterStep(standing)}`;
    default:
      return state satisfies never;
  }
}

function afterStep({ step }: RunStanding): string {
  return step === null ? '' : ` after step ${step}`;
}
