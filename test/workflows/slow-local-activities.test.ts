/** Local activities on an orchestrator that is slow: what they leave in a history must be gone through again the same way. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { ApplicationFailure } from '@temporalio/common';
import { begin, closeServer } from './server.ts';

after(closeServer); // which goes through the histories once more

/** Half of a workflow task of 2 s is what a local activity has; after 1.6 s of it the task is renewed. */
const taskTimeout = '2s';

describe('a local activity', () => {
  test('that outlives several workflow tasks, beside timers and other activities, leaves a history that can be gone on with', async () => {
    const slowMs = [0, 700, 950, 1_050, 1_700, 2_400, 3_500, 5_000, 6_500];
    await Promise.all(slowMs.map((ms) => runWithSlowEpochs(ms)));
  });

  test('that takes too long is asked for as another one, which a run waits for', async () => {
    const run = await begin({
      settings: { maxSteps: 1 },
      taskTimeout,
      fakes: {
        packBatch: async (_, { nth, usual }) => {
          if (nth <= 2) await delay(1_500);
          return usual();
        },
      },
    });
    assert.equal((await run.result()).step, 1);
    const { events = [] } = await run.handle.fetchHistory();
    const scheduled = (events ?? []).map((event) => event.activityTaskScheduledEventAttributes?.activityType?.name);
    assert.equal(scheduled.filter((name) => name === 'packBatch').length, 1);
  });
});

/** Which lease a GPU worker is asked for under is slow to be told, while the run looks again and again whom it waits for. */
async function runWithSlowEpochs(slowMs: number): Promise<void> {
  const run = await begin({
    settings: { maxSteps: 1 },
    taskTimeout,
    fakes: {
      leaseTrainer: (_, { nth, usual }) => {
        if (nth === 1) throw ApplicationFailure.nonRetryable('another process holds epoch 1', 'TrainerSuperseded');
        return usual();
      },
      nextTrainerEpoch: async (_, { nth, usual }) => {
        if (nth === 2) await delay(slowMs);
        return usual();
      },
      describeTrainers: async () => {
        await delay(300);
        return 'a trainer: 2 known, busy with run other';
      },
    },
  });
  assert.equal((await run.result()).step, 1);
}
