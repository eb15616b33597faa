/** The loop of a run: commits and their order, and what the next execution continues from. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { ApplicationFailure } from '@temporalio/common';
import { optionalTsToMs } from '@temporalio/common/lib/time.js';
import { RatchetError } from '../../core/errors.ts';
import { timeMetrics } from '../../core/rl/effectiveness.ts';
import { type Fakes, Gate, holdingStep } from './fake-run.ts';
import { groupsIn } from './fake-training.ts';
import { aWhile, failureOf, timesContinued, until } from './look.ts';
import { begin, type BegunRun, closeServer, shortHistoryQueue } from './server.ts';

after(closeServer);

describe('a run', { concurrency: 8 }, () => {
  test('v0 is committed and sealed before anything is sampled from it', async () => {
    const run = await begin();
    await run.result();
    const order = run.order('warmUp', 'commitStep', 'saveCheckpoint', 'broadcastWeights', 'leaseGroups');
    assert.deepEqual(order.slice(0, 5), ['warmUp', 'commitStep', 'saveCheckpoint', 'broadcastWeights', 'leaseGroups']);
  });

  test('each step is collected, trained, committed and served, one after another, and the ledger is exact', async () => {
    const run = await begin({ settings: { maxSteps: 4 } });
    const { step, ledger, policyDigest, weights } = await run.result();
    const round = ['leaseGroups', 'playGroups', 'packBatch', 'trainBatch', 'commitStep'] as const;
    const order = run.order(...round, 'publishVersion', 'broadcastWeights');
    const each = [...round, 'publishVersion', 'broadcastWeights'];
    assert.deepEqual(order, ['commitStep', 'broadcastWeights', ...each, ...each, ...each, ...each]);
    const commits = run.fake.commits();
    assert.deepEqual(
      commits.map((commit) => commit.step),
      [0, 1, 2, 3, 4],
    );
    assert.deepEqual([step, ledger.isSound, ledger.issued, ledger.counts['trained']], [4, true, 8, 8]);
    assert.deepEqual([policyDigest, weights], [commits[4]!.policy.digest, 'weights/step_4/']);
    assert.deepEqual(
      run.fake.served.map(({ digest }) => digest),
      commits.map(({ policy }) => policy.digest),
    );
  });

  test('a step is trained onto the weights of the one before it, and its commit names that one', async () => {
    const run = await begin();
    await run.result();
    const [v0, v1, v2] = run.fake.commits().map(({ policy }) => policy.digest);
    assert.deepEqual(
      run.inputs('trainBatch').map(({ from }) => from.digest),
      [v0, v1, v2],
    );
    const shas = run.fake.lineages.get('main')!.map(({ sha256 }) => sha256);
    assert.deepEqual(
      run.fake.commits().map(({ parent }) => parent),
      [null, ...shas.slice(0, -1)],
    );
  });

  test('until a step is committed, its weights are not uploaded, not served, and nothing is leased after it', async () => {
    const gate = new Gate();
    const fakes: Fakes = {
      commitStep: async (_, { nth, usual }) => {
        if (nth === 2) await gate.pass();
        return usual();
      },
    };
    const run = await begin({ settings: { maxSteps: 2 }, fakes });
    await gate.reached;
    await aWhile();
    const after = run.order('commitStep', 'publishVersion', 'broadcastWeights', 'leaseGroups');
    assert.deepEqual(after, ['commitStep', 'broadcastWeights', 'leaseGroups', 'commitStep']);
    gate.open();
    assert.equal((await run.result()).step, 2);
  });

  test('at async level 0 groups are sampled from the newest version, at level 1 while the step before them trains', async () => {
    const levels = [0, 1].map(async (maxAsyncLevel) => {
      const run = await begin({ settings: { maxAsyncLevel } });
      await run.result();
      return {
        sampledFrom: run.inputs('leaseGroups').map(({ policy }) => policy.step),
        ledger: (await run.result()).ledger,
      };
    });
    const [onPolicy, ahead] = await Promise.all(levels);
    assert.deepEqual(onPolicy!.sampledFrom, [0, 1, 2]);
    assert.deepEqual(ahead!.sampledFrom, [0, 0, 1]);
    assert.ok(ahead!.ledger.isSound && ahead!.ledger.issued === 6);
  });

  test('what is sampled ahead is in no commit before its own step', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxAsyncLevel: 1 },
      fakes: {
        ...holdingStep(gate, 1),
      },
    });
    await gate.reached;
    await until('a batch ahead', () => run.inputs('packBatch').length === 2);
    gate.open();
    await run.result();
    assert.deepEqual(
      run.fake.commits().map(({ state }) => state.curriculum.nextOrdinal),
      [1, 3, 5, 7],
    );
    assert.deepEqual(
      run.fake.commits().map(({ outcomes }) => outcomes.issued),
      ['', '1-2', '3-4', '5-6'],
    );
  });

  test('a run of no steps ends with v0, from its warm-up in segments', async () => {
    const sft = { data: null, steps: 70, batchSize: 4, learningRate: 1e-3, warmupSteps: 0, minRatio: 0 };
    const run = await begin({ settings: { maxSteps: 0, sft } });
    const { step, weights } = await run.result();
    assert.deepEqual([step, weights], [0, 'weights/step_0/']);
    assert.deepEqual(
      run.inputs('warmUp').map(({ from }) => from?.step ?? null),
      [null, 0, 50],
    );
    assert.equal(run.fake.commits()[0]!.metrics['sft/loss'], 1);
    assert.equal(run.inputs('trainBatch').length, 0);
    assert.deepEqual((await run.told('warm-up')).length, 2);
  });

  test('the coefficient of the KL follows its target, and the reference is renewed at its steps', async () => {
    const kl = { beta: 0.1, targetKl: 0.001, refSyncSteps: 2 };
    const run = await begin({ settings: { kl, maxSteps: 3 } });
    await run.result();
    assert.deepEqual(
      run.fake.commits().map(({ state }) => state.klBeta),
      [0.1, 0.2, 0.4, 0.8],
    );
    assert.deepEqual(
      run.inputs('trainBatch').map(({ klBeta }) => klBeta),
      [0.1, 0.2, 0.4],
    );
    assert.deepEqual(
      run.inputs('trainBatch').map(({ reference }) => reference.step),
      [0, 0, 2],
    );
  });

  test('steps with a snapshot are sealed, and the reference and evaluations keep their weights', async () => {
    const run = await begin({ settings: { maxSteps: 4 } });
    await run.result();
    assert.deepEqual(run.fake.sealed, [0, 2, 4]);
    assert.deepEqual(
      run.inputs('saveCheckpoint').map(({ pinned }) => pinned),
      [[], [0], [0]],
    );
    assert.deepEqual(await run.told('checkpoint'), [
      'checkpoint 2 sealed (kept: 0, 2)',
      'checkpoint 4 sealed (kept: 0, 2, 4)',
    ]);
  });

  test('a version is sealed only once its weights are in the store', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 2 },
      fakes: {
        publishVersion: async ({ policy }, { usual }) => {
          if (policy.step === 2) await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    await aWhile();
    assert.deepEqual(run.fake.sealed, [0]);
    gate.open();
    await run.result();
    assert.deepEqual(run.fake.sealed, [0, 2]);
  });

  test('a commit has the figures of its step', async () => {
    const run = await begin({ settings: { maxSteps: 1 } });
    await run.result();
    const { metrics } = run.fake.commits()[1]!;
    assert.equal(metrics['train/learning_rate'], run.fake.spec.learningRate);
    assert.equal(metrics['train/kl_divergence'], 0.01);
    assert.equal(metrics['train/loss'], 1);
    for (const name of [timeMetrics.step, timeMetrics.train, timeMetrics.generation, timeMetrics.waitForBatch])
      assert.ok(metrics[name]! > 0, name);
  });

  test('a record that is not sound is said, and the run ends with it', async () => {
    const run = await begin({
      settings: { maxSteps: 1 },
      fakes: {
        auditRun: async (_, { usual }) => ({ ...(await usual()), isSound: false, holes: [7], brokenLinks: [1] }),
      },
    });
    const { ledger } = await run.result();
    assert.equal(ledger.isSound, false);
    const told = (await run.ended()).events.filter(({ kind }) => kind === 'warning').map(({ text }) => text);
    assert.deepEqual(told, [
      'the record of this run is not sound: commits 1 do not continue the one before them (it was changed or removed) groups 7 are unaccounted for',
    ]);
  });

  test('a commit that somebody else made ends the run by name, and nothing is trained after it', async () => {
    const run = await begin({
      fakes: {
        commitStep: (_, { nth, usual }) => {
          if (nth === 2) throw new RatchetError('CommitConflict', "Temporal's state of this run is behind its store");
          return usual();
        },
      },
    });
    assert.match(await failureOf(run.result()), /CommitConflict.*behind its store/);
    assert.deepEqual([run.inputs('trainBatch').length, run.fake.commits().length], [1, 1]);
  });

  test('a run whose state is behind its store says so, instead of naming an object that retention removed', async () => {
    const missing = 'rollouts/step_2/leases.json is missing';
    const behind = (isBehind: boolean): Promise<BegunRun> =>
      begin({
        fakes: {
          playGroups: (_, { nth, usual }) => {
            if (nth > 1) throw new RatchetError('CheckpointDamaged', missing);
            return usual();
          },
          checkBehind: ({ step }) => {
            if (isBehind) throw new RatchetError('CommitConflict', `behind its store: about to make step ${step}`);
          },
        },
      });
    assert.match(
      await failureOf((await behind(true)).result()),
      /CommitConflict.*behind its store: about to make step 2/,
    );
    assert.match(await failureOf((await behind(false)).result()), /CheckpointDamaged.*leases\.json is missing/);
  });

  test('a step that was committed although nobody heard of it is adopted, not made again', async () => {
    const run = await begin({
      fakes: {
        commitStep: async (_, { nth, usual }) => {
          const made = await usual();
          if (nth === 2) throw new RatchetError('StoreUnavailable', 'the answer was lost');
          return made;
        },
      },
    });
    const { step, ledger } = await run.result();
    assert.deepEqual([step, ledger.isSound], [3, true]);
    assert.equal(run.inputs('trainBatch').length, 3);
    assert.deepEqual(
      run.inputs('commitStep').map(({ state }) => state.step),
      [0, 1, 1, 2, 3],
    );
  });

  test('a store that is away is asked until it is back; the server says so meanwhile, and the history does not grow', async () => {
    const gate = { isOpen: false };
    const run = await begin({
      fakes: {
        packBatch: (_, { usual }) => {
          if (!gate.isOpen) throw new RatchetError('StoreUnavailable', 'the bucket does not answer');
          return usual();
        },
      },
    });
    await until('the reason', async () => {
      const { raw } = await run.handle.describe();
      const asked = raw.pendingActivities?.find(({ activityType }) => activityType?.name === 'packBatch');
      return asked?.lastFailure?.message === 'the bucket does not answer' && (asked.attempt ?? 0) > 2;
    });
    const { historyLength } = await run.handle.describe();
    await until('another attempt', () => Promise.resolve(run.inputs('packBatch').length > 4));
    assert.equal((await run.handle.describe()).historyLength, historyLength);
    gate.isOpen = true;
    assert.equal((await run.result()).step, 3);
  });

  test('every activity is heard of while it works: a worker that dies of it is noticed in seconds', async () => {
    const run = await begin({ settings: { maxSteps: 2 } });
    await run.result();
    const { events } = await run.handle.fetchHistory();
    const scheduled = (events ?? []).flatMap(({ activityTaskScheduledEventAttributes: one }) => (one ? [one] : []));
    // Looks at Temporal's list of workers end by their own short limit; one is made where no worker takes the run at once.
    const working = scheduled.filter(({ activityType }) => activityType?.name !== 'describeTrainers');
    const silent = working.filter(({ heartbeatTimeout }) => !(optionalTsToMs(heartbeatTimeout) ?? 0));
    assert.ok(scheduled.length > 10);
    assert.deepEqual(
      silent.map(({ activityType }) => activityType?.name),
      [],
    );
  });

  test('what is refused by name is not asked again, and ends the run', async () => {
    const refusal = ApplicationFailure.nonRetryable('no such engine', 'ModelUnsupported');
    const run = await begin({ fakes: { warmUp: () => Promise.reject(refusal) } });
    assert.match(await failureOf(run.result()), /no such engine/);
    assert.equal(run.inputs('warmUp').length, 1);
  });

  test('a run that is started again continues from its newest commit', async () => {
    const first = await begin({ settings: { maxSteps: 4 } });
    await first.atStep(2);
    await first.handle.terminate();
    const made = first.fake.commits().length - 1;
    const second = await begin({ fake: first.fake });
    const { step, ledger } = await second.result();
    assert.deepEqual([step, ledger.isSound], [4, true]);
    assert.equal(second.fake.inputs('warmUp').length, 1, 'v0 is there');
    assert.deepEqual(
      second.fake.commits().map((commit) => commit.step),
      [0, 1, 2, 3, 4],
    );
    assert.ok(made >= 2);
    assert.equal((await second.status()).attempt, 2);
    assert.equal((await second.status()).lost.recoveries, 1, 'it was started again before its end');
  });

  test('what had been cut off on its way into the store is made up for before anything else', async () => {
    const first = await begin({ settings: { maxSteps: 1 } });
    await first.result();
    first.fake.spec.maxSteps = 2;
    const lost = first.fake.commits()[1]!.policy;
    const begunAt = first.fake.asked.length;
    const second = await begin({ fake: first.fake, fakes: { findUnpublished: () => [lost] } });
    await second.result();
    const order = second.fake.asked.slice(begunAt).map(({ name }) => name);
    assert.ok(order.indexOf('publishVersion') < order.indexOf('leaseGroups'));
    assert.equal(second.inputs('publishVersion')[1]!.policy.digest, lost.digest);
  });

  test('a run that had ended continues when it is to make more steps; what were between is no loss of its own', async () => {
    const first = await begin({ settings: { maxSteps: 1 } });
    await first.result();
    first.fake.spec.maxSteps = 2;
    const second = await begin({
      fake: first.fake,
      fakes: { openRun: async (_, { usual }) => ({ ...(await usual()), hadEnded: true }) },
    });
    await second.result();
    assert.equal((await second.status()).lost.recoveries, 0);
    assert.ok(second.fake.commits()[2]!.metrics['time/paused']! > 0);
  });

  test('a long history continues as new: every step once, and what was set, told and counted stays', async () => {
    const run = await begin({ settings: { maxSteps: 9 }, taskQueue: shortHistoryQueue });
    await run.atStep(1);
    await run.tell('set', { learning_rate: 0.5 });
    const { step, ledger } = await run.result();
    const continued = await timesContinued(run);
    assert.ok(continued >= 2, `${continued} executions were continued`);
    assert.deepEqual([step, ledger.isSound, ledger.issued], [9, true, 18]);
    assert.equal(run.inputs('openRun').length, 1);
    assert.equal(run.inputs('trainBatch').length, 9);
    assert.equal(run.inputs('trainBatch').at(-1)!.overrides.learningRate, 0.5);
    const told = await run.told('step');
    assert.ok(told.at(-1)!.startsWith('step 9 of 9'));
    assert.equal((await run.status()).trend.length, 9);
  });

  test('what is sampled ahead is trained before a long history continues as new', async () => {
    const run = await begin({ settings: { maxSteps: 9, maxAsyncLevel: 1 }, taskQueue: shortHistoryQueue });
    const { ledger } = await run.result();
    assert.ok((await timesContinued(run)) >= 1);
    assert.deepEqual([ledger.isSound, ledger.issued, ledger.counts['trained']], [true, 18, 18]);
    assert.equal(run.inputs('playGroups').length, 9, 'no group was generated twice');
  });

  test('the run that is continued asks the GPU worker first that held it', async () => {
    const run = await begin({ settings: { maxSteps: 9 }, taskQueue: shortHistoryQueue });
    await run.result();
    const continued = await timesContinued(run);
    assert.equal(run.inputs('leaseTrainer').length, continued + 1);
    assert.equal(run.inputs('describeTrainers').length, 0);
  });

  test('progress is found by search attributes, and in the memo where there are none', async () => {
    const [withAttributes, without] = await Promise.all(
      [true, false].map(async (hasSearchAttributes) => {
        const run = await begin({
          settings: { maxSteps: 1 },
          fakes: { openRun: async (_, { usual }) => ({ ...(await usual()), hasSearchAttributes }) },
        });
        await run.result();
        return run.client.workflow.getHandle(run.name).describe();
      }),
    );
    const attributes = withAttributes!.typedSearchAttributes.getAll().map(({ key, value }) => [key.name, value]);
    assert.deepEqual(Object.fromEntries(attributes)['RatchetStep'], 1);
    assert.equal(without!.memo?.['step'], 1);
  });

  test('the groups of a batch are those that were kept, in order', async () => {
    const run = await begin();
    await run.result();
    assert.deepEqual(
      run.inputs('trainBatch').map(({ packed }) => groupsIn(run.fake, packed)),
      ['1-2', '3-4', '5-6'],
    );
  });
});
