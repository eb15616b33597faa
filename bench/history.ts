import type { Client } from '@temporalio/client';
import protobufs, { type temporal } from '@temporalio/proto';

type HistoryEvent = temporal.api.history.v1.IHistoryEvent;
const { HistoryEvent: eventCodec } = protobufs.temporal.api.history.v1;
const { EventType } = protobufs.temporal.api.enums.v1;

const workflowTaskEvents = new Set<HistoryEvent['eventType']>([
  EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
  EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
  EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
  EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
  EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
]);

/** Events of one step in its run's history. */
export interface StepHistory {
  readonly step: number;
  readonly events: number;
  /** Workflow task events among them. Their number varies by a few: one task handles results that arrive together. */
  readonly workflowTaskEvents: number;
  /** Size of the encoded events; the server's own count differs by a few per cent. */
  readonly bytes: number;
  readonly samplingRounds: number;
}

/**
 * A history cut at its commits: the events after the commit of step n−1, up to and with that of step n. What belongs to
 * no step (opening, warm-up, v0, the end of the run) is left out.
 */
export function stepsOfHistory(events: readonly HistoryEvent[]): StepHistory[] {
  const nameOf = namesOf(events);
  const commits = events.flatMap((event, i) => (isDone(event) && nameOf(event) === 'commitStep' ? [i] : []));
  return commits.slice(1).map((end, i) => {
    const own = events.slice(commits[i]! + 1, end + 1);
    return {
      step: i + 1,
      events: own.length,
      workflowTaskEvents: own.filter(({ eventType }) => workflowTaskEvents.has(eventType)).length,
      bytes: own.reduce((sum, event) => sum + eventCodec.encode(event).finish().byteLength, 0),
      samplingRounds: own.filter((event) => isLease(event, nameOf(event))).length,
    };
  });
}

/** Events in the histories of all workflows of the server, whatever has become of them. */
export async function countEvents(client: Client): Promise<number> {
  let events = 0;
  for await (const { workflowId, runId } of client.workflow.list()) {
    events += (await client.workflow.getHandle(workflowId, runId).describe()).historyLength;
  }
  return events;
}

/** The histories of all executions of a workflow, oldest first. */
export async function historiesOf(client: Client, workflowId: string): Promise<(readonly HistoryEvent[])[]> {
  const runIds: string[] = [];
  for await (const { runId } of client.workflow.list({ query: `WorkflowId = '${workflowId}'` })) runIds.unshift(runId);
  const histories = runIds.map((runId) => client.workflow.getHandle(workflowId, runId).fetchHistory());
  return (await Promise.all(histories)).map(({ events }) => events ?? []);
}

/** Workflow tasks that a worker did not answer in time, or not well: the next one replays the history. */
export function countTasksLost(events: readonly HistoryEvent[]): number {
  const { EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT: late, EVENT_TYPE_WORKFLOW_TASK_FAILED: failed } = EventType;
  return events.filter(({ eventType }) => eventType === late || eventType === failed).length;
}

/** Milliseconds of each part of a history, by name: one value for each time it happened, in order. */
export type Durations = Readonly<Record<string, readonly number[]>>;

/** Durations by activity, waiting for a worker and running, and the same for workflow tasks. */
export function durationsOf(events: readonly HistoryEvent[]): Durations {
  const durations: Record<string, number[]> = {};
  const add = (name: string, ms: number): void => void (durations[name] ??= []).push(ms);
  const byId = new Map(events.map((event) => [String(event.eventId), event]));
  const at = (id: unknown): HistoryEvent | undefined => byId.get(String(id));

  for (const event of events) {
    const activity = event.activityTaskCompletedEventAttributes;
    const task = event.workflowTaskCompletedEventAttributes;
    const ended = activity ?? task;
    const scheduled = at(ended?.scheduledEventId);
    const started = at(ended?.startedEventId);
    if (scheduled && started) {
      const name = scheduled.activityTaskScheduledEventAttributes?.activityType?.name ?? 'workflow task';
      add(`${name}: waits`, milliseconds(started) - milliseconds(scheduled));
      add(`${name}: runs`, milliseconds(event) - milliseconds(started));
    }
  }
  return durations;
}

function isDone({ activityTaskCompletedEventAttributes: done }: HistoryEvent): boolean {
  return done !== null && done !== undefined;
}

/** Whether groups were leased: by an activity of their own, or with a broadcast or a batch. */
function isLease(event: HistoryEvent, activity: string | null | undefined): boolean {
  if (activity === 'leaseGroups') return isDone(event);
  const payloads = event.activityTaskCompletedEventAttributes?.result?.payloads ?? [];
  const mayLease = activity === 'broadcastWeights' || activity === 'packBatch';
  return mayLease && payloads.some(({ data }) => textOf(data).includes('"leased":'));
}

function textOf(data: Uint8Array | null | undefined): string {
  return Buffer.from(data ?? []).toString('utf8');
}

/** Of the activity whose end an event is. */
function namesOf(events: readonly HistoryEvent[]): (event: HistoryEvent) => string | null | undefined {
  const byId = new Map(events.map((event) => [String(event.eventId), event]));
  return ({ activityTaskCompletedEventAttributes: done }) =>
    byId.get(String(done?.scheduledEventId))?.activityTaskScheduledEventAttributes?.activityType?.name;
}

function milliseconds({ eventTime }: HistoryEvent): number {
  return Number(eventTime?.seconds) * 1000 + (eventTime?.nanos ?? 0) / 1e6;
}
