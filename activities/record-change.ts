import { Context } from '@temporalio/activity';
import {
  type Changed,
  namedAs,
  type RunChange,
  type scheduleChanges,
  type StartedAs,
  whoAsked,
} from '../core/rl/changes.ts';
import type { RescoreHandle, RescoreInput } from '../core/eval/rescore.ts';
import { rescoreAsked, rescored } from '../core/eval/rescore-asked.ts';
import { RatchetError } from '../core/errors.ts';
import { ownerIn, readChanges, writeChange } from '../runs/changes.ts';
import { layout } from '../runs/layout.ts';
import { rescoreKeys } from '../runs/rescores/rescore-store.ts';
import { storeOf } from '../runs/run-access.ts';
import { attemptHere } from './around/heartbeat.ts';

/** Looks at a history for an update, which a reset may have taken from it, before it is kept without a name. */
const looksMax = 8;

/** Reads in Temporal's histories which person asked for what. */
export interface HistoryOfChanges {
  /** Who sent the update that an execution has accepted; null where its history has no such update. */
  readonly update: (execution: Execution, id: string) => Promise<AskedEvent | null>;
  /** Who started this execution, and who cancelled or terminated others of this workflow, which are over. */
  readonly around: (execution: Execution) => Promise<readonly Omit<RunChange, 'step'>[]>;
  /** Who cancelled this execution, or the workflow that it is a part of; null where no person did. */
  readonly cancelled: (execution: Execution) => Promise<AskedEvent | null>;
}

export interface Execution {
  readonly workflow: string;
  readonly execution: string;
}

export type AskedEvent = Pick<RunChange, 'time' | 'identity' | 'principal'>;

/** An update that a workflow has accepted. */
type AcceptedUpdate = Pick<RunChange, 'what' | 'asked' | 'step'> & {
  /** Id of the update. */
  readonly update: string;
};

/** A change of a schedule, which was made. */
export interface ScheduleChange extends StartedAs {
  readonly what: (typeof scheduleChanges)[number];
  /** Id of the schedule. */
  readonly schedule: string;
  /** The absolute URI of the folder of runs. */
  readonly store: string;
  /** The run that it evaluates; null for one of other models. */
  readonly run: string | null;
}

/**
 * Keeps a change that was made, with the name of the person who asked for it, which only the history has. Idempotent:
 * a repetition finds the same event. Returns who it was, for people.
 */
export const createRecordChange =
  (history: HistoryOfChanges) =>
  async ({ of, ...change }: AcceptedUpdate & { readonly of: Changed }): Promise<string> => {
    const found = await withName(history, change);
    await writeChange(of, found);
    return whoAsked(found);
  };

/**
 * The change that an accepted update was, with the name of the person who asked for it: for a workflow that keeps its
 * changes itself until it knows a store. Reads only.
 */
export const createNameChange =
  (history: HistoryOfChanges) =>
  (change: AcceptedUpdate): Promise<RunChange> =>
    withName(history, change);

async function withName(history: HistoryOfChanges, { update, ...change }: AcceptedUpdate): Promise<RunChange> {
  const execution = executionHere();
  const asked = await history.update(execution, update);
  if (asked === null && attemptHere() < looksMax)
    throw new RatchetError(
      'ServerUnavailable',
      `The history of ${execution.workflow} does not show the update ${update} (${change.what}) yet.`,
    );
  return { ...change, ...(asked ?? nobody()), ...execution, id: update };
}

function nobody(): AskedEvent {
  return { time: new Date().toISOString(), identity: '', principal: null };
}

/**
 * Keeps who started the execution of the workflow that asks, and who ended those before by force: for a sweep, which is
 * not opened by an activity of its own. Idempotent.
 */
export const createRecordStart =
  (history: HistoryOfChanges) =>
  async ({ of }: { readonly of: Changed }): Promise<void> => {
    await recordAround(of, history, executionHere());
  };

/**
 * Opens a rescore, and keeps who asked for it in the changes of its run or evaluation, and who ended it by force before.
 * One that is finished, and is only shown again, changes nothing. Idempotent.
 */
export const recordingRescore =
  (open: (asked: { readonly input: RescoreInput }) => Promise<RescoreHandle>, history: HistoryOfChanges) =>
  async ({ input }: { readonly input: RescoreInput }): Promise<RescoreHandle> => {
    const opened = await open({ input });
    const isFinished = (await storeOf(opened.place).read(rescoreKeys.summary(opened.place))) !== null;
    if (!isFinished) await recordAround(rescored(input), history, executionHere(), rescoreAsked(input));
    return opened;
  };

/**
 * Keeps who changed a schedule: whoever started the workflow that asks, which was started for that. Temporal keeps no
 * history of schedules. Also in the changes of the run that it evaluates, unless that was removed. Idempotent.
 */
export const createRecordScheduleChange =
  (history: HistoryOfChanges) =>
  async ({ schedule: name, store, run, ...as }: ScheduleChange): Promise<void> => {
    await recordAround({ kind: 'schedule', name, store }, history, executionHere(), as);
    const place = run === null ? null : { name: run, store };
    if (place === null || (await storeOf(place).read(layout.run())) === null) return;
    await recordAround({ ...place, kind: 'run' }, history, executionHere(), as);
  };

/** Keeps who cancelled the execution of the workflow that asks, as it ends. Idempotent. */
export const createRecordCancel =
  (history: HistoryOfChanges) =>
  async ({ of, as }: { readonly of: Changed; readonly as?: StartedAs }): Promise<void> => {
    const execution = executionHere();
    const asked = await history.cancelled(execution);
    if (asked !== null) await writeChange(of, namedAs({ ...cancelled, ...asked, ...execution }, as));
  };

const cancelled = { what: 'cancel', asked: '', step: null, id: 'cancel' } as const;

/** Writes the changes of a pool into each store that lacks some. Idempotent. Returns the stores that could not be written. */
export async function keepPoolChanges({
  pool,
  stores,
  changes,
}: {
  readonly pool: string;
  readonly stores: readonly string[];
  readonly changes: readonly RunChange[];
}): Promise<readonly { readonly store: string; readonly why: string }[]> {
  const missed: { store: string; why: string }[] = [];
  for (const store of stores) {
    const of = { kind: 'pool', name: pool, store } as const;
    try {
      const known = new Set((await readChanges(of)).changes.map(nameOf));
      for (const change of changes) if (!known.has(nameOf(change))) await writeChange(of, change);
    } catch (error) {
      missed.push({ store, why: error instanceof Error ? error.message : String(error) });
    }
  }
  return missed;
}

/**
 * Keeps who started an execution, and who ended those before it by force. Idempotent. Returns who owns a run: whoever
 * started it first.
 */
export async function recordAround(
  of: Changed,
  history: HistoryOfChanges,
  execution: Execution,
  as?: StartedAs,
): Promise<string | null> {
  const known = new Set((await readChanges(of)).changes.map(nameOf));
  for (const change of await history.around(execution))
    if (!known.has(nameOf(change))) await writeChange(of, namedAs({ ...change, step: null }, as));
  return ownerIn(await readChanges(of));
}

/** The execution of the workflow that asked for this activity. */
export function executionHere(): Execution {
  const { workflowExecution } = Context.current().info;
  return { workflow: workflowExecution?.workflowId ?? '', execution: workflowExecution?.runId ?? '' };
}

function nameOf({ execution, id }: Pick<RunChange, 'execution' | 'id'>): string {
  return `${execution}/${id}`;
}

/** The activities that only record who asked for what. */
export const createRecords = (history: HistoryOfChanges) => ({
  recordChange: createRecordChange(history),
  nameChange: createNameChange(history),
  recordStart: createRecordStart(history),
  recordCancel: createRecordCancel(history),
  recordScheduleChange: createRecordScheduleChange(history),
  keepPoolChanges,
});
