/** What a run costs a Temporal server, read from the histories of its workflow. */
import type { Client } from '@temporalio/client';
import proto from '@temporalio/proto';

type HistoryEvent = proto.temporal.api.history.v1.IHistoryEvent;

export interface HistoryFigures {
  readonly executions: number;
  readonly events: number;
  readonly bytes: number;
  /** Of the execution with most. */
  readonly eventsMax: number;
  readonly bytesMax: number;
  /** The largest payloads of one event together, which is what the limit of a blob is about, and the event's kind. */
  readonly payloadBytesMax: number;
  readonly payloadOf: string;
  /** Most activities that were scheduled and not closed at one time. */
  readonly pendingActivitiesMax: number;
}

const { HistoryEvent: Event } = proto.temporal.api.history.v1;
const { Payloads } = proto.temporal.api.common.v1;
const { EventType } = proto.temporal.api.enums.v1;

/** Of all executions of a workflow id that the server still has. */
export async function historyFigures(client: Client, workflowId: string): Promise<HistoryFigures> {
  const figures = { executions: 0, events: 0, bytes: 0, eventsMax: 0, bytesMax: 0, pendingActivitiesMax: 0 };
  let [payloadBytesMax, payloadOf] = [0, ''];
  for await (const { runId } of client.workflow.list({ query: `WorkflowId = '${workflowId}'` })) {
    const { events } = await client.workflow.getHandle(workflowId, runId).fetchHistory();
    const sizes = (events ?? []).map((event) => Event.encode(event).finish().length);
    const bytes = sizes.reduce((sum, size) => sum + size, 0);
    figures.executions += 1;
    figures.events += sizes.length;
    figures.bytes += bytes;
    figures.eventsMax = Math.max(figures.eventsMax, sizes.length);
    figures.bytesMax = Math.max(figures.bytesMax, bytes);
    figures.pendingActivitiesMax = Math.max(figures.pendingActivitiesMax, pendingMax(events ?? []));
    for (const event of events ?? []) {
      const size = payloadBytes(event);
      if (size > payloadBytesMax) [payloadBytesMax, payloadOf] = [size, nameOf(event)];
    }
  }
  return { ...figures, payloadBytesMax, payloadOf };
}

function pendingMax(events: readonly HistoryEvent[]): number {
  let [pending, most] = [0, 0];
  for (const event of events) {
    if (event.activityTaskScheduledEventAttributes) pending += 1;
    if (
      event.activityTaskCompletedEventAttributes ??
      event.activityTaskFailedEventAttributes ??
      event.activityTaskTimedOutEventAttributes ??
      event.activityTaskCanceledEventAttributes
    )
      pending -= 1;
    most = Math.max(most, pending);
  }
  return most;
}

/** Bytes of its input, or of its result. */
function payloadBytes(event: HistoryEvent): number {
  const attributes = Object.values(event).filter(
    (value): value is Record<string, unknown> => typeof value === 'object' && value !== null,
  );
  const carried = attributes.flatMap(({ input, result, details }) => [input, result, details]);
  return carried.reduce<number>((sum, one) => sum + (hasPayloads(one) ? Payloads.encode(one).finish().length : 0), 0);
}

function hasPayloads(value: unknown): value is proto.temporal.api.common.v1.IPayloads {
  return typeof value === 'object' && value !== null && 'payloads' in value;
}

function nameOf(event: HistoryEvent): string {
  const kind = event.eventType == null ? 'an event' : EventType[event.eventType];
  const activity = event.activityTaskScheduledEventAttributes?.activityType?.name;
  return activity ? `${kind} ${activity}` : kind;
}
