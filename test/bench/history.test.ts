import assert from 'node:assert/strict';
import { test } from 'node:test';
import protobufs, { type temporal } from '@temporalio/proto';
import { durationsOf, stepsOfHistory } from '../../bench/history.ts';

type HistoryEvent = temporal.api.history.v1.IHistoryEvent;
const { EventType } = protobufs.temporal.api.enums.v1;

test('a history is cut at its commits, and what comes before v0 or after the last step belongs to no step', () => {
  const events = [
    started(1, 0),
    ...done(2, 'commitStep'),
    ...done(4, 'leaseGroups'),
    { ...started(6, 0), eventType: EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED },
    ...done(7, 'commitStep'),
    ...done(9, 'leaseGroups'),
    ...done(11, 'leaseGroups'),
    ...done(13, 'commitStep'),
    started(15, 0),
  ];
  const steps = stepsOfHistory(events);
  assert.deepEqual(
    steps.map(({ step, events, workflowTaskEvents, samplingRounds }) => ({
      step,
      events,
      workflowTaskEvents,
      samplingRounds,
    })),
    [
      { step: 1, events: 5, workflowTaskEvents: 1, samplingRounds: 1 },
      { step: 2, events: 6, workflowTaskEvents: 0, samplingRounds: 2 },
    ],
  );
  assert.ok(
    steps.every(({ bytes }) => bytes > 40),
    'events are encoded',
  );
  assert.deepEqual(stepsOfHistory([started(1, 0)]), []);
});

test('an activity waits from when it was scheduled to when it started, and runs from then on', () => {
  const events = [
    {
      eventId: long(1),
      eventTime: at(1_000),
      eventType: EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
      activityTaskScheduledEventAttributes: { activityType: { name: 'trainStep' } },
    },
    started(2, 1_003),
    {
      eventId: long(3),
      eventTime: at(1_103.5),
      eventType: EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED,
      activityTaskCompletedEventAttributes: { scheduledEventId: long(1), startedEventId: long(2) },
    },
  ];
  assert.deepEqual(durationsOf(events), { 'trainStep: waits': [3], 'trainStep: runs': [100.5] });
});

function started(id: number, ms: number): HistoryEvent {
  return { eventId: long(id), eventTime: at(ms), eventType: EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED };
}

/** An activity from its schedule to its end. */
function done(id: number, activity: string): HistoryEvent[] {
  return [
    {
      eventId: long(id),
      eventTime: at(0),
      eventType: EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
      activityTaskScheduledEventAttributes: { activityType: { name: activity } },
    },
    {
      eventId: long(id + 1),
      eventTime: at(0),
      eventType: EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED,
      activityTaskCompletedEventAttributes: { scheduledEventId: long(id) },
    },
  ];
}

const long = (value: number) => value as unknown as NonNullable<HistoryEvent['eventId']>;
const at = (ms: number) => ({ seconds: long(Math.floor(ms / 1000)), nanos: (ms % 1000) * 1e6 });
