/** What a step costs Temporal: each event is a write of the server, and the fewer there are the longer a run goes on in one history. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { stepsOfHistory } from '../../bench/history.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { type Fakes, specWith } from './fake-run.ts';
import { aWhile, until } from './look.ts';
import { begin, type BegunRun, closeServer } from './server.ts';

after(closeServer);

/** Five activities one after another, each with three events of its own and a workflow task of three, and one event for the list of runs. */
const eventsOfStep = 5 * 6 + 1;

/** No step but the last seals a checkpoint; a version is in its place once it is committed. */
function begun(settings: Partial<RunSpec>, fakes: Fakes = {}): Promise<BegunRun> {
  const checkpoints = { ...specWith('any', {}).checkpoints, interval: 100 };
  return begin({
    settings: { checkpoints, ...settings },
    fakes: { ...fakes, commitStep: async (_, { usual }) => ({ ...(await usual()), isPublished: true }) },
  });
}

describe('the history of a run', { concurrency: 2 }, () => {
  test('a step at level 0 is 31 events: its lease comes with the broadcast before it, and its plan with its training', async () => {
    const run = await begun({ maxSteps: 4 });
    await run.result();
    const steps = stepsOfHistory((await run.handle.fetchHistory()).events ?? []);
    // The first step is leased by itself: its window is not open when v0 is broadcast. At the end other things go on beside.
    assert.deepEqual(
      steps.slice(1, 3).map(({ events, samplingRounds }) => [events, samplingRounds]),
      [
        [eventsOfStep, 1],
        [eventsOfStep, 1],
      ],
    );
  });

  test('at level 1 it is no more, where the next batch is sampled before a step has trained', async () => {
    const run: BegunRun = await begun(
      { maxAsyncLevel: 1, maxSteps: 6 },
      {
        trainBatch: async ({ step }, { usual }) => {
          if (step < 6)
            await until('the next batch is packed', () => run.inputs('packBatch').length > step).then(aWhile);
          return usual();
        },
      },
    );
    await run.result();
    const steps = stepsOfHistory((await run.handle.fetchHistory()).events ?? []);
    for (const { events } of steps.slice(2, 4)) assert.ok(events <= eventsOfStep + 2, `${events} events`);
  });

  test('nor where a step has trained before the next batch is sampled: its lease comes with the batch before it', async () => {
    const run: BegunRun = await begun(
      { maxAsyncLevel: 1, maxSteps: 6 },
      {
        playGroups: async ({ round: { step } }, { usual }) => {
          const isServed = (): boolean => run.fake.served.some((policy) => policy.step >= step - 1);
          if (step > 1) await until('the step before it is served', isServed).then(aWhile);
          return usual();
        },
      },
    );
    await run.result();
    const steps = stepsOfHistory((await run.handle.fetchHistory()).events ?? []);
    for (const { events, samplingRounds } of steps.slice(2, 4)) {
      assert.ok(events <= eventsOfStep + 2, `${events} events`);
      assert.equal(samplingRounds, 1);
    }
  });
});
