import protobufs, { type temporal } from '@temporalio/proto';

type HistoryEvent = temporal.api.history.v1.IHistoryEvent;
const { HistoryEvent: eventCodec } = protobufs.temporal.api.history.v1;
const { EventType } = protobufs.temporal.api.enums.v1;

/** What one step left in its run's history. */
export interface StepHistory {
  readonly step: number;
  readonly events: number;
  /** As the events are encoded; the server's own count differs by a few per cent. */
  readonly bytes: number;
  readonly samplingRounds: number;
}

/**
 * A history cut at its commits: the events after the commit of step n−1, up to and with that of step n. What belongs to
 * no step (opening, warm-up, v0, the end of the run) is left out.
 */
export function stepsOfHistory(events: readonly HistoryEvent[]): StepHistory[] {
  const commits = events.flatMap((event, i) => (localActivityOf(event) === 'commitStep' ? [i] : []));
  return commits.slice(1).map((end, i) => {
    const own = events.slice(commits[i]! + 1, end + 1);
    return {
      step: i + 1,
      events: own.length,
      bytes: own.reduce((sum, event) => sum + eventCodec.encode(event).finish().byteLength, 0),
      samplingRounds: own.filter((event) => localActivityOf(event) === 'leaseGroups').length,
    };
  });
}

/** Milliseconds of each part of a history, by name: one value for each time it happened, in order. */
export type Durations = Readonly<Record<string, readonly number[]>>;

/**
 * Where the time goes: how long each activity waited for a worker and then ran, the same for workflow tasks, and how
 * long the local activities took that run within those.
 */
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
      add(`${name}: waits`, eventTime(started) - eventTime(scheduled));
      add(`${name}: runs`, eventTime(event) - eventTime(started));
    }
    const local = localActivityDetails(event);
    if (local)
      add(`${local.activity_type} (local): runs`, timeOf(local.complete_time) - timeOf(local.original_schedule_time));
  }
  return durations;
}

interface Time {
  readonly seconds: number;
  readonly nanos: number;
}

/** The marker that the SDK records for a local activity. */
interface LocalActivity {
  readonly activity_type: string;
  readonly complete_time: Time;
  readonly original_schedule_time: Time;
}

function localActivityOf(event: HistoryEvent): string | undefined {
  return localActivityDetails(event)?.activity_type;
}

function localActivityDetails(event: HistoryEvent): LocalActivity | null {
  if (event.eventType !== EventType.EVENT_TYPE_MARKER_RECORDED) return null;
  const marker = event.markerRecordedEventAttributes;
  const data = marker?.details?.['data']?.payloads?.[0]?.data;
  if (marker?.markerName !== 'core_local_activity' || !data) return null;
  return JSON.parse(Buffer.from(data).toString()) as LocalActivity;
}

function eventTime({ eventTime }: HistoryEvent): number {
  return timeOf({ seconds: Number(eventTime?.seconds), nanos: eventTime?.nanos ?? 0 });
}

function timeOf({ seconds, nanos }: Time): number {
  return seconds * 1000 + nanos / 1e6;
}
