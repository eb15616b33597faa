import assert from 'node:assert/strict';
import { test } from 'node:test';
import { MockActivityEnvironment } from '@temporalio/testing';
import { withHeartbeat } from '../../activities/heartbeat.ts';

const heartbeatTimeoutMs = 2_000;

test('what was given up while its process slept is not begun again beside the attempt that took its place', async () => {
  const { environment, work } = attempt(Date.now() - 5 * heartbeatTimeoutMs);
  environment.on('heartbeat', () => environment.cancel('NOT_FOUND'));
  await assert.rejects(environment.run(() => withHeartbeat(work.begin)));
  assert.equal(work.begun, 0);
});

test('what waited long for a worker, and is still wanted, is done', async () => {
  const { environment, work } = attempt(Date.now() - 5 * heartbeatTimeoutMs);
  await environment.run(() => withHeartbeat(work.begin));
  assert.equal(work.begun, 1);
});

test('an activity is heard of before its work begins', async () => {
  const { environment, work } = attempt(Date.now());
  const heard: number[] = [];
  environment.on('heartbeat', () => heard.push(work.begun));
  await environment.run(() => withHeartbeat(work.begin));
  assert.equal(heard[0], 0);
});

function attempt(currentAttemptScheduledTimestampMs: number) {
  const environment = new MockActivityEnvironment({ heartbeatTimeoutMs, currentAttemptScheduledTimestampMs });
  const work = { begun: 0, begin: () => Promise.resolve(void (work.begun += 1)) };
  return { environment, work };
}
