/**
 * An orchestrator that is slow, with workflow tasks that time out soon: what it leaves in a history must be gone through again the same
 * way. With local activities, which outlived workflow tasks, it was not: such a run could never be gone on with.
 */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { ApplicationFailure } from '@temporalio/common';
import { begin, closeServer } from './server.ts';

after(closeServer); // which goes through the histories once more

const taskTimeout = '2s';

describe('an orchestrator that is slow', () => {
  test('beside timers and other activities leaves a history that can be continued with', async () => {
    const slowMs = [0, 700, 950, 1_050, 1_700, 2_400, 3_500, 5_000, 6_500];
    await Promise.all(slowMs.map((ms) => runWithSlowEpochs(ms)));
  });

  test('is waited for in all that is between stored objects', async () => {
    const slowly = async <T>(_: unknown, { usual }: { readonly usual: () => Promise<T> }): Promise<T> => {
      await delay(1_500);
      return usual();
    };
    const run = await begin({
      settings: { maxSteps: 1 },
      taskTimeout,
      fakes: { leaseGroups: slowly, filterGroups: slowly, packBatch: slowly, commitStep: slowly },
    });
    assert.equal((await run.result()).step, 1);
  });
});

/** The epoch of a lease reaches its GPU worker late, while the run looks again and again for its holder. */
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
        return 'a GPU worker: 2 known, busy with run other';
      },
    },
  });
  assert.equal((await run.result()).step, 1);
}
