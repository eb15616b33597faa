/** The GPU worker that holds a run: what is asked of it, what becomes of its answers, and what when it is gone. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { ApplicationFailure } from '@temporalio/common';
import { RatchetError } from '../../core/errors.ts';
import type { Recovery } from '../../activities/index.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { FakeRun, Gate, type Input, type Output, specWith, versionAfter } from './fake-run.ts';
import { groupsIn } from './fake-training.ts';
import { aWhile, until } from './look.ts';
import { begin, type BegunRun, closeServer, freshName } from './server.ts';

after(closeServer);

const oneStep = { maxSteps: 1 };

const noVersion = (made: Output<'trainBatch'>, of: Partial<Output<'trainBatch'>>): Output<'trainBatch'> => ({
  ...made,
  policy: null,
  optimizer: null,
  ...of,
});

const recovered: Recovery = {
  restoredFrom: 0,
  replayedSteps: 1,
  seconds: 2,
  damaged: [],
  differs: null,
};

/** Other weights than the run had for a version. */
function replayOf({ step }: { readonly step: number }) {
  return { ...versionAfter(step, 'main', 'again'), replay: 1 };
}

const epochs = (run: BegunRun): number[] => run.inputs('trainBatch').map(({ epoch }) => epoch);

describe('a step in training', { concurrency: 8 }, () => {
  test('a batch that is refused is set aside, and another one is collected from there', async () => {
    const run = await begin({
      settings: oneStep,
      fakes: {
        trainBatch: async (_, { nth, usual }) =>
          nth === 1 ? noVersion(await usual(), { reason: 'the loss is not a number' }) : usual(),
      },
    });
    const { ledger } = await run.result();
    assert.deepEqual(
      run.inputs('trainBatch').map(({ attempt, packed }) => [attempt, groupsIn(run.fake, packed)]),
      [
        [1, '1-2'],
        [2, '3-4'],
      ],
    );
    assert.deepEqual([ledger.isSound, ledger.counts['refused'], ledger.counts['trained']], [true, 2, 2]);
    assert.deepEqual(await run.told('refused'), [
      'step 1: batch refused (the loss is not a number); its groups are not trained',
    ]);
    assert.equal((await run.told('paused')).length, 0);
  });

  test('three refusals in a row pause the run; what is set meanwhile holds for the next attempt', async () => {
    const run = await begin({
      settings: oneStep,
      fakes: {
        trainBatch: async (_, { nth, usual }) =>
          nth <= 3 ? noVersion(await usual(), { reason: 'the gradient explodes' }) : usual(),
      },
    });
    assert.match(
      await run.paused(),
      /^3 batches for step 1 were refused in a row: the gradient explodes\. Lower the learning rate/,
    );
    assert.equal(run.inputs('trainBatch').length, 3);
    await run.tell('set', { learning_rate: 1e-7 });
    await run.tell('resume');
    const { ledger } = await run.result();
    assert.deepEqual(
      run.inputs('trainBatch').map(({ overrides }) => overrides.learningRate),
      [undefined, undefined, undefined, 1e-7],
    );
    assert.deepEqual([ledger.isSound, ledger.counts['refused']], [true, 6]);
  });

  test('a GPU worker that does not have the activity is released and named, and the next one is asked', async () => {
    const lacks = 'Activity function trainBatch is not registered on this Worker';
    const run = await begin({
      settings: oneStep,
      fakes: {
        trainBatch: (_, { nth, usual }) => {
          if (nth > 1) return usual();
          throw ApplicationFailure.retryable(`${lacks}, available activities: ["warmUp"]`, 'NotFoundError');
        },
      },
    });
    const { ledger } = await run.result();
    assert.equal(ledger.isSound, true);
    const [first, second] = epochs(run);
    assert.ok(second! > first!, 'under another lease');
    const [said, ...more] = await run.told('warning');
    assert.match(
      said!,
      /^the GPU worker gpu-\d is of another version .*trainBatch is not registered on this Worker\. /,
    );
    assert.deepEqual([more, await run.told('recovery')], [[], []]);
  });

  test('a step that does not fit into memory is planned once more with half the rows, onto the same batch', async () => {
    const run = await begin({
      settings: oneStep,
      fakes: {
        trainBatch: async (_, { nth, usual }) =>
          nth === 1 ? noVersion(await usual(), { halvedTo: 4, reason: 'out of memory' }) : usual(),
      },
    });
    await run.result();
    assert.deepEqual(
      run.inputs('trainBatch').map(({ attempt, halvedTo, packed }) => [attempt, halvedTo, groupsIn(run.fake, packed)]),
      [
        [1, undefined, '1-2'],
        [2, 4, '1-2'],
      ],
    );
    assert.match((await run.told('warning'))[0]!, /^step 1: out of memory; tried once more with 4 rows at a time/);
    assert.equal(run.inputs('playGroups').length, 1, 'nothing was sampled again');
  });

  test('where training stored batches again gives other weights the run continues from those, and they are served', async () => {
    const run = await begin({
      settings: { maxSteps: 2 },
      fakes: {
        trainBatch: async (input, { nth, usual }) => {
          const made = await usual();
          if (nth !== 2) return made;
          const recovery = { ...recovered, differs: { step: 1, digest: 'f'.repeat(64), isSameEngine: false } };
          return noVersion(made, { replay: replayOf({ step: 1 }), recovery });
        },
      },
    });
    await run.result();
    assert.deepEqual(
      run.inputs('trainBatch').map(({ from }) => [from.step, from.replay ?? 0]),
      [
        [0, 0],
        [1, 0],
        [1, 1],
      ],
    );
    assert.deepEqual(
      run.fake.served.map(({ step, replay = 0 }) => [step, replay]),
      [
        [0, 0],
        [1, 0],
        [1, 1],
        [2, 0],
      ],
    );
    assert.match((await run.told('warning'))[0]!, /training up to step 1 again gave other weights, first at step 1/);
  });

  test('a version made again that is served after the next step was made begins no later step', async () => {
    const run = await begin({
      settings: { maxSteps: 3, maxAsyncLevel: 0 },
      fakes: {
        trainBatch: async (input, { nth, usual }) => {
          const made = await usual();
          if (nth !== 2) return made;
          const recovery = { ...recovered, differs: { step: 1, digest: 'f'.repeat(64), isSameEngine: false } };
          return noVersion(made, { replay: replayOf({ step: 1 }), recovery });
        },
        broadcastWeights: async ({ policy }, { usual }) => {
          const isMadeAgain = policy.step === 1 && policy.replay === 1;
          if (isMadeAgain)
            await until('step 2 is committed', () => run.fake.commits().some(({ step }) => step === 2)).then(aWhile);
          return usual();
        },
      },
    });
    await run.result();
    const leases = run.inputs('broadcastWeights').flatMap(({ lease }) => (lease ? [lease] : []));
    const leased = [...run.inputs('leaseGroups'), ...leases].filter(({ step }) => step === 3);
    assert.deepEqual([...new Set(leased.map(({ policy }) => policy.step))], [2]);
  });

  test('a trainer that fails again and again pauses the run; resumed, the same step is asked for again', async () => {
    const run = await begin({
      settings: oneStep,
      fakes: {
        trainBatch: (_, { nth, usual }) => {
          if (nth === 1) throw new RatchetError('TrainerFailing', 'the engine died 3 times at step 1.');
          return usual();
        },
      },
    });
    assert.equal(await run.paused(), 'the engine died 3 times at step 1. Then resume.');
    await run.tell('resume');
    await run.result();
    assert.deepEqual([run.inputs('trainBatch').length, run.inputs('playGroups').length], [2, 1]);
    const [first, second] = run.inputs('trainBatch');
    const { epoch: _, ...asked } = first!;
    assert.deepEqual({ ...second!, epoch: 0 }, { ...asked, epoch: 0 });
  });

  test('a GPU worker that is lost in the middle of a step: another one trains the same plan, under a later epoch', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 2 },
      fakes: {
        trainBatch: async (_, { nth, usual }) => {
          if (nth === 2) await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    run.fake.loseTrainer();
    const { step, ledger } = await run.result();
    assert.deepEqual([step, ledger.isSound], [2, true]);
    assert.deepEqual(epochs(run), [1, 1, 2]);
    const [, second, again] = run.inputs('trainBatch');
    assert.deepEqual({ ...again, epoch: 0 }, { ...second, epoch: 0 }, 'asked the same, so its plan is the same');
    assert.deepEqual(run.inputs('playGroups').length, 2, 'nothing was sampled for it');
    assert.match((await run.told('recovery'))[0]!, /^the GPU worker gpu-2 of this run is lost; another one continues/);
    assert.equal((await run.status()).lost.recoveries, 1);
  });

  test('a GPU worker whose heartbeats stop is lost after their timeout', async () => {
    const gate = new Gate();
    const fake = new FakeRun(specWith(freshName(), { ...oneStep, heartbeatTimeoutS: 2 }));
    fake.isSilent = (name, nth) => name === 'leaseTrainer' && nth === 1;
    const run = await begin({
      fake,
      fakes: {
        trainBatch: async ({ epoch }, { usual }) => {
          if (epoch === 1) await gate.pass();
          return usual();
        },
      },
    });
    await run.result();
    assert.equal(epochs(run).at(-1), 2);
    assert.equal((await run.told('recovery')).length, 1);
  });

  test('a trainer module that ends its process three times at one step pauses the run by name', async () => {
    const trainer = { kind: 'module' as const, import: { path: '/a/trainer.ts', sha256: null }, options: {} };
    const run = await begin({
      settings: { ...oneStep, trainer },
      fakes: {
        trainBatch: async (_, { nth, usual }) => {
          if (nth > 3) return usual();
          run.fake.loseTrainer();
          await new Gate().pass();
          return usual();
        },
      },
    });
    assert.match(
      await run.paused(),
      /^the GPU worker ended 3 times in a row in the middle of the same work: .*exit code 137/,
    );
    await run.tell('resume');
    await run.result();
    assert.deepEqual(epochs(run), [1, 2, 3, 4]);
  });

  test('one that was only slow, and takes the run again itself, pauses nothing however often that happens', async () => {
    const trainer = { kind: 'module' as const, import: { path: '/a/trainer.ts', sha256: null }, options: {} };
    const fake = new FakeRun(specWith(freshName(), { ...oneStep, trainer }));
    fake.isSlow = true;
    const run = await begin({
      fake,
      fakes: {
        trainBatch: async (_, { nth, usual }) => {
          if (nth > 4) return usual();
          fake.loseTrainer();
          await new Gate().pass();
          return usual();
        },
      },
    });
    await run.result();
    assert.deepEqual(epochs(run), [1, 2, 3, 4, 5]);
    assert.equal((await run.told('recovery')).length, 4);
  });

  test('while no GPU worker takes the run it says who there is, and what the last one failed with', async () => {
    const run = await begin({
      settings: oneStep,
      fakes: {
        leaseTrainer: (_, { nth, usual }) => {
          if (nth === 1) throw ApplicationFailure.nonRetryable('another process holds epoch 1', 'TrainerSuperseded');
          return usual();
        },
        describeTrainers: () => 'a GPU worker: 2 known, busy with run other',
      },
    });
    await until('the wait', async () => {
      const status = await run.status().catch(() => null);
      const waits = status?.waitingOn.map(({ what }) => what) ?? [];
      return waits.includes(
        'a GPU worker: 2 known, busy with run other; the last one failed: another process holds epoch 1',
      );
    });
    assert.equal((await run.result()).step, 1);
    assert.equal(run.inputs('leaseTrainer').length, 2);
    assert.deepEqual(await run.told('warning'), ['waiting for a GPU worker: 2 known, busy with run other']);
  });

  test('a long pause gives the GPU worker back; resumed, the run holds one again, and nobody calls that a loss', async () => {
    let given = 0;
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 2 },
      fakes: {
        leaseTrainer: (_, { usual }) => usual().finally(() => (given += 1)),
        trainBatch: async (_, { usual }) => {
          await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    await run.tell('pause', 'lunch');
    gate.open();
    await until('the end of a hold', () => given === 1);
    assert.equal((await run.status()).phase, 'paused');
    await run.tell('resume');
    assert.equal((await run.result()).step, 2);
    assert.equal(run.inputs('leaseTrainer').length, 2);
    assert.equal((await run.told('recovery')).length, 0);
  });

  test('how a trainer came back is told, with what it took', async () => {
    const run = await begin({
      settings: { maxSteps: 2 },
      fakes: {
        trainBatch: async (_, { nth, usual }) => ({
          ...(await usual()),
          ...(nth === 2 ? { recovery: { ...recovered, damaged: ['checkpoint 1: not what its manifest says'] } } : {}),
        }),
      },
    });
    await run.result();
    assert.deepEqual(await run.told('warning'), ['checkpoint passed over: checkpoint 1: not what its manifest says']);
    assert.match(
      (await run.told('recovery'))[0]!,
      /^trainer restored from checkpoint 0, 1 stored batches trained again in 2\.0s, 0 rollouts generated for it$/,
    );
    assert.deepEqual((await run.status()).lost, { recoveries: 1, rollouts: 0, tokens: 0, seconds: 2 });
  });

  test('loading the checkpoint that a run begins from is no recovery', async () => {
    const run = await begin({
      settings: oneStep,
      fakes: {
        trainBatch: async (_, { usual }) => ({ ...(await usual()), recovery: { ...recovered, replayedSteps: 0 } }),
      },
    });
    await run.result();
    assert.equal((await run.told('recovery')).length, 0);
    assert.equal((await run.status()).lost.recoveries, 0);
  });

  test('another engine than made the version before is said, with both', async () => {
    const engines = { before: 'torch 2.15.0', now: 'torch 2.16.0' };
    const run = await begin({
      settings: oneStep,
      fakes: {
        trainBatch: async (_, { usual }) => ({
          ...(await usual()),
          recovery: { ...recovered, replayedSteps: 0, engines },
        }),
      },
    });
    await run.result();
    assert.deepEqual(await run.told('warning'), [
      'another engine trains from step 1 on: torch 2.16.0; before it was torch 2.15.0. The same batches may give other bits',
    ]);
    assert.equal((await run.told('recovery')).length, 0);
  });

  test('attempts of a step that came to nothing are counted', async () => {
    const lost = { recoveries: 1, rollouts: 0, tokens: 0, seconds: 3 };
    const run = await begin({
      settings: oneStep,
      fakes: { trainBatch: async (_, { usual }) => ({ ...(await usual()), lost }) },
    });
    await run.result();
    assert.deepEqual((await run.status()).lost, lost);
  });

  test('a version that was lost before its upload is made again, and uploaded then', async () => {
    const run = await begin({
      settings: oneStep,
      fakes: { publishVersion: ({ policy }, { nth }) => !(policy.step === 1 && nth === 1) },
    });
    await run.result();
    assert.deepEqual(run.order('publishVersion', 'remakeVersion', 'broadcastWeights'), [
      'broadcastWeights',
      'publishVersion',
      'remakeVersion',
      'publishVersion',
      'broadcastWeights',
    ]);
  });

  test('one that comes out otherwise is uploaded, served and trained on under a name of its own', async () => {
    const run = await begin({
      settings: { maxSteps: 2 },
      fakes: {
        publishVersion: (_, { nth }) => nth !== 1,
        remakeVersion: ({ policy }: Input<'remakeVersion'>) => ({ replay: replayOf(policy), recovery: recovered }),
      },
    });
    await run.result();
    assert.deepEqual(
      run.inputs('publishVersion').map(({ policy: { step, replay = 0 } }) => [step, replay]),
      [
        [1, 0],
        [1, 1],
        [2, 0],
      ],
    );
    assert.deepEqual(
      run.fake.served.map(({ step, replay = 0 }) => [step, replay]),
      [
        [0, 0],
        [1, 1],
        [2, 0],
      ],
    );
    assert.deepEqual(run.inputs('trainBatch').at(-1)!.from.replay, 1);
  });

  test('a version that is in its place with its commit needs no upload', async () => {
    const run = await begin({
      settings: oneStep,
      fakes: { commitStep: async (_, { usual }) => ({ ...(await usual()), isPublished: true }) },
    });
    await run.result();
    assert.equal(run.inputs('publishVersion').length, 0);
    assert.deepEqual(
      run.fake.served.map(({ step }) => step),
      [0, 1],
    );
  });

  test('the trainer is given back when the run has made its last step', async () => {
    let ended = false;
    const gate = new Gate();
    const run = await begin({
      settings: oneStep,
      fakes: {
        leaseTrainer: (_, { usual }) => usual().finally(() => (ended = true)),
        auditRun: async (_, { usual }) => {
          await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    await until('the end of the hold', () => ended);
    gate.open();
    await run.result();
  });

  test('chunks that no worker has room for wait in the run, not at the worker that took them', async () => {
    const atOnce = { now: 0, most: 0 };
    const [entry] = specWith('', {}).environments;
    const program = {} as NonNullable<RunSpec['environments'][number]['program']>;
    const run = await begin({
      settings: {
        maxSteps: 1,
        maxAsyncLevel: 0,
        batchSize: 32,
        maxConcurrent: 8,
        environments: [{ ...entry!, program }],
      },
      fakes: {
        leaseGroups: async (_, { usual }) => ({ ...(await usual()), workers: 2 }),
        playGroups: async (_, { usual }) => {
          atOnce.most = Math.max(atOnce.most, ++atOnce.now);
          await aWhile();
          const played = await usual();
          atOnce.now -= 1;
          return played;
        },
      },
    });
    const { ledger } = await run.result();
    assert.deepEqual([ledger.isSound, ledger.counts['trained'], run.inputs('playGroups').length], [true, 8, 8]);
    assert(atOnce.most <= 3, `${atOnce.most} groups of four for eight rollouts at once`);
  });
});
