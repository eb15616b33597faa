import assert from 'node:assert/strict';
import { test } from 'node:test';
import { MockActivityEnvironment } from '@temporalio/testing';
import { withHeartbeat } from '../../activities/around/heartbeat.ts';

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

test('how often it is heard of follows its timeout; what is new is said in between, and not for every word of it', async (t) => {
  t.mock.timers.enable({ apis: ['setInterval', 'setTimeout'] });
  let now = 0;
  t.mock.method(performance, 'now', () => now);
  const pass = (ms: number): void => {
    for (let i = 0; i < ms; i += 100) {
      now += 100;
      t.mock.timers.tick(100);
    }
  };
  const { environment } = attempt(Date.now(), 120_000);
  const heard: unknown[] = [];
  environment.on('heartbeat', (details) => heard.push(details));
  let done = 0;
  const told = await environment.run(() =>
    withHeartbeat(
      (_, say) => {
        pass(120_000);
        const quiet = heard.length;
        for (; done < 100; done += 1) {
          say();
          pass(100);
        }
        pass(10_000);
        return Promise.resolve({ quiet, busy: heard.length - quiet });
      },
      () => done,
    ),
  );
  assert.deepEqual(told, { quiet: 1 + 4, busy: 2 });
  assert.equal(heard.at(-1), 100);
});

function attempt(currentAttemptScheduledTimestampMs: number, timeoutMs = heartbeatTimeoutMs) {
  const environment = new MockActivityEnvironment({
    heartbeatTimeoutMs: timeoutMs,
    currentAttemptScheduledTimestampMs,
  });
  const work = { begun: 0, begin: () => Promise.resolve(void (work.begun += 1)) };
  return { environment, work };
}
