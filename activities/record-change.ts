import { Context } from '@temporalio/activity';
import { type RunChange, whoAsked } from '../core/rl/changes.ts';
import type { RunHandle } from '../core/rl/run-state.ts';
import { RatchetError } from '../core/errors.ts';
import { ownerIn, readChanges, writeChange } from '../runs/changes.ts';
import { attemptHere } from './around/heartbeat.ts';
import { type RunPlace, storeOf } from '../runs/run-access.ts';

/** Looks at a history for an update, which a reset may have taken from it, before it is kept without a name. */
const looksMax = 8;

/** What Temporal's histories say about people. */
export interface HistoryOfChanges {
  /** Who sent the update that an execution has accepted; null where its history has no such update. */
  readonly update: (execution: Execution, id: string) => Promise<AskedEvent | null>;
  /** Who started this execution, and who cancelled or terminated others of this workflow, which are over. */
  readonly around: (execution: Execution) => Promise<readonly Omit<RunChange, 'step'>[]>;
}

export interface Execution {
  readonly workflow: string;
  readonly execution: string;
}

export type AskedEvent = Pick<RunChange, 'time' | 'identity' | 'principal'>;

/**
 * Keeps a change that the run has made, with the name of whoever asked for it, which only the history has. Idempotent:
 * a repetition finds the same event. Returns who it was, for people.
 */
export const createRecordChange =
  (history: HistoryOfChanges) =>
  async ({
    run,
    update,
    ...change
  }: Pick<RunChange, 'what' | 'asked' | 'step'> & {
    readonly run: RunHandle;
    /** Id of the update. */
    readonly update: string;
  }): Promise<string> => {
    const execution = executionHere();
    const asked = await history.update(execution, update);
    if (asked === null && attemptHere() < looksMax)
      throw new RatchetError(
        'ServerUnavailable',
        `The history of ${execution.workflow} does not show the update ${update} (${change.what}) yet.`,
      );
    const found = asked ?? { time: new Date().toISOString(), identity: '', principal: null };
    await writeChange(run, { ...change, ...found, ...execution, id: update });
    return whoAsked(found);
  };

/**
 * Keeps who started this execution of a run, and who ended those before by force. Idempotent. Returns who owns the run:
 * whoever started it first.
 */
export async function recordAround(
  run: RunPlace,
  history: HistoryOfChanges,
  execution: Execution,
): Promise<string | null> {
  const known = new Set((await readChanges(storeOf(run))).changes.map(nameOf));
  for (const change of await history.around(execution))
    if (!known.has(nameOf(change))) await writeChange(run, { ...change, step: null });
  return ownerIn(await readChanges(storeOf(run)));
}

/** The execution of the workflow that asked for this activity. */
function executionHere(): Execution {
  const { workflowExecution } = Context.current().info;
  return { workflow: workflowExecution?.workflowId ?? '', execution: workflowExecution?.runId ?? '' };
}

function nameOf({ execution, id }: Pick<RunChange, 'execution' | 'id'>): string {
  return `${execution}/${id}`;
}
