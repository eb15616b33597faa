/** Requests of people to a running run: pause, stop, set, rewind, cancel. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { RatchetError } from '../../core/errors.ts';
import { timeMetrics } from '../../core/rl/effectiveness.ts';
import { type AskedOfRun, nothingAsked } from '../../core/rl/run-state.ts';
import { type Fakes, Gate, holdingStep } from './fake-run.ts';
import { filtering } from './fake-training.ts';
import { eventsQuery, storeMissedSignal } from '../../workflows/control/messages.ts';
import { aWhile, failureOf, timesContinued, until } from './look.ts';
import { begin, closeServer } from './server.ts';

after(closeServer);

const keepingOnlyStep1 = filtering(async ({ round }, { usual }) => {
  const filtered = await usual();
  return round.step === 1 ? filtered : { ...filtered, kept: { ...filtered.kept, ordinals: '' }, ended: {} };
});

describe('a run that is talked to', { concurrency: 8 }, () => {
  test('paused, it finishes the step under way and begins no other; resumed, it says how long it stood still', async () => {
    const gate = new Gate();
    const run = await begin({ settings: { maxSteps: 2 }, fakes: holdingStep(gate) });
    await gate.reached;
    assert.equal(
      await run.tell('pause', 'lunch'),
      `running → paused: lunch. What is under way is finished and stored (step 1 of 2); no further step begins. Continue with: npx ratchet-rl resume ${run.name}`,
    );
    gate.open();
    await until('the commit', () => run.fake.commits().length === 2);
    await aWhile();
    assert.equal(run.inputs('leaseGroups').length, 1);
    const { phase, pausedBecause } = await run.status();
    assert.deepEqual([phase, pausedBecause], ['paused', 'lunch']);
    assert.match(
      await run.tell('resume'),
      /^paused \(lunch\) → running\. It continues after step 1\. Step 2 of 2 is next\.$/,
    );
    await run.result();
    assert.ok(run.fake.commits()[2]!.metrics[timeMetrics.paused]! > 0.1);
  });

  test('workers that do not see the store are named, with the reason, until they do', async () => {
    const gate = new Gate();
    const run = await begin({ settings: { maxSteps: 1 }, fakes: holdingStep(gate) });
    await gate.reached;
    const worker = 'rollout worker 7 on gpu-b';
    const why = `${worker}: the store file:///srv/outputs/words/ is not seen`;
    await run.handle.signal(storeMissedSignal, { worker, why });
    await run.handle.signal(storeMissedSignal, { worker, why: `${why}, still` });
    const { workersAway } = await run.status();
    assert.deepEqual(
      workersAway?.map(({ since, ...away }) => [away, Number.isNaN(Date.parse(since))]),
      [[{ worker, why: `${why}, still` }, false]],
    );
    await run.handle.signal(storeMissedSignal, { worker, why: null });
    assert.equal((await run.status()).workersAway, undefined);
    gate.open();
    await run.result();
    const told = (await run.handle.query(eventsQuery, 0)).filter(({ text }) => text.includes(worker));
    assert.deepEqual(
      told.map(({ kind, text }) => [kind, text]),
      [
        ['warning', `passed over until it sees the store: ${why}`],
        ['recovery', `the ${worker} sees the store again`],
      ],
    );
  });

  test('a worker that is of an older version than what was stored is named as that', async () => {
    const gate = new Gate();
    const run = await begin({ settings: { maxSteps: 1 }, fakes: holdingStep(gate) });
    await gate.reached;
    const worker = 'GPU worker 8 on gpu-b';
    const why = `${worker} is of an older version: run.json`;
    await run.handle.signal(storeMissedSignal, { worker, why, isOlder: true });
    assert.equal((await run.status()).workersAway?.[0]?.why, why);
    await run.handle.signal(storeMissedSignal, { worker, why: null, isOlder: true });
    gate.open();
    await run.result();
    const told = (await run.handle.query(eventsQuery, 0)).filter(({ text }) => text.includes(worker));
    assert.deepEqual(
      told.map(({ text }) => text),
      [`passed over until it is of the newer version: ${why}`, `the ${worker} goes on`],
    );
  });

  test('a pause by the run itself is no time that a person had it stand still', async () => {
    const run = await begin({
      settings: { maxSteps: 1 },
      fakes: {
        trainBatch: (_, { nth, usual }) => {
          if (nth === 1) throw new RatchetError('TrainerFailing', 'it fails.');
          return usual();
        },
      },
    });
    await run.paused();
    await run.tell('resume');
    await run.result();
    assert.equal(run.fake.commits()[1]!.metrics[timeMetrics.paused], undefined);
  });

  test('paused twice it has the later reason, and tells the earlier one', async () => {
    const gate = new Gate();
    const run = await begin({ settings: { maxSteps: 1 }, fakes: holdingStep(gate) });
    await gate.reached;
    await run.tell('pause', 'lunch');
    assert.match(await run.tell('pause', 'fire'), /^It was paused already \(lunch\); the reason is now: fire\./);
    await run.tell('resume');
    gate.open();
    await run.result();
  });

  test('what cannot be is refused with what is', async () => {
    const gate = new Gate();
    const run = await begin({ settings: { maxSteps: 2 }, fakes: holdingStep(gate, 2) });
    await gate.reached;
    await run.atStep(1);
    assert.match(await failureOf(run.tell('resume')), /^Refused: The run is not paused; it is at step 1\./);
    assert.match(
      await failureOf(run.tell('rewind', 2)),
      /^Refused: rewind: expected a committed step up to 1, got 2\./,
    );
    assert.match(await failureOf(run.tell('rewind', 0.5)), /expected a committed step/);
    assert.match(await failureOf(run.tell('set', { learning_rate: -1 })), /^Refused: .*learning_rate/);
    assert.match(await failureOf(run.tell('set', { max_steps: 1 })), /^Refused: .*max_steps/);
    gate.open();
    await run.result();
  });

  test('a run that ends already cannot be stopped, and one that has no version not be taken back', async () => {
    const [ending, beginning] = [new Gate(), new Gate()];
    const run = await begin({
      settings: { maxSteps: 1 },
      fakes: {
        warmUp: async (_, { usual }) => {
          await beginning.pass();
          return usual();
        },
        auditRun: async (_, { usual }) => {
          await ending.pass();
          return usual();
        },
      },
    });
    await beginning.reached;
    assert.match(await failureOf(run.tell('rewind', 0)), /nothing is committed yet/);
    beginning.open();
    await ending.reached;
    assert.match(await failureOf(run.tell('stop')), /^Refused: The run is ending already, after step 1\./);
    ending.open();
    await run.result();
  });

  test('what is set holds from the next step that is not planned, and is in its commit', async () => {
    const gate = new Gate();
    const run = await begin({ settings: { maxSteps: 2 }, fakes: holdingStep(gate) });
    await gate.reached;
    const said = await run.tell('set', { learning_rate: 0.25, 'checkpoints.interval': 1 });
    assert.match(said, /from step 2 on; the run ends after step 2$/);
    gate.open();
    await run.result();
    assert.deepEqual(
      run.inputs('trainBatch').map(({ overrides }) => overrides),
      [{}, { learningRate: 0.25, checkpointInterval: 1 }],
    );
    assert.equal(run.fake.commits()[2]!.state.overrides.learningRate, 0.25);
    assert.equal((await run.status()).learningRate, 0.25);
  });

  test('more steps than its file says are made when that is set, and fewer', async () => {
    const gate = new Gate();
    const run = await begin({ settings: { maxSteps: 2 }, fakes: holdingStep(gate) });
    await gate.reached;
    await run.tell('set', { max_steps: 4 });
    await run.tell('set', { max_steps: 3 });
    gate.open();
    assert.equal((await run.result()).step, 3);
    assert.equal((await run.ended()).status.phase, 'finished');
  });

  test('stopped, it ends after the step under way, with a checkpoint of it', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 5 },
      fakes: {
        playGroups: async ({ round }, { usual }) => {
          if (round.step === 1) await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    assert.match(
      await run.tell('stop'),
      /^running → stopping: step 1 is finished and committed, its evaluations too\. Step 1 gets a checkpoint\./,
    );
    gate.open();
    const { step } = await run.result();
    assert.equal(step, 1);
    assert.deepEqual(run.fake.sealed, [0, 1]);
    const { status, events } = await run.ended();
    assert.deepEqual([status.phase, status.maxSteps], ['stopped', 5]);
    assert.match(events.at(-1)!.text, /^stopped at step 1 of 5/);
  });

  test('stopped while it is paused, it gives the step up that waits, and ends at once', async () => {
    const run = await begin({
      settings: { maxSteps: 5 },
      fakes: keepingOnlyStep1,
    });
    assert.match(await run.paused(), /^no-signal/);
    assert.match(
      await run.tell('stop'),
      /^paused \(no-signal.*→ stopping at step 1: what was sampled for a later one stays in the store/,
    );
    const { step, ledger } = await run.result();
    assert.deepEqual([step, ledger.issued], [1, 2]);
    assert.equal(await timesContinued(run), 1);
  });

  test('a run that is stopping gives the step up that would wait for somebody', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 5 },
      fakes: {
        playGroups: async (input, call) => {
          if (input.round.step === 2) await gate.pass();
          return keepingOnlyStep1.playGroups!(input, call);
        },
      },
    });
    await gate.reached;
    await run.tell('stop');
    gate.open();
    assert.equal((await run.result()).step, 1);
    assert.equal((await run.told('paused')).length, 0);
    assert.match((await run.told('stopping')).at(-1)!, /step abandoned, as the run is stopping: no-signal/);
  });

  test('taken back, it continues from there in a new lineage, and what came after stays as it was', async () => {
    const gate = new Gate();
    const run = await begin({ settings: { maxSteps: 3 }, fakes: holdingStep(gate, 3) });
    await gate.reached;
    await run.atStep(2);
    assert.match(
      await run.tell('rewind', 1),
      /^Continuing from step 1 in a new lineage once what is under way is done\./,
    );
    gate.open();
    const { step, ledger } = await run.result();
    assert.deepEqual([step, ledger.isSound], [3, true]);
    assert.deepEqual([...run.fake.lineages.keys()], ['main', 'l2']);
    assert.deepEqual(
      run.fake.commits('l2').map((commit) => commit.step),
      [1, 2, 3],
    );
    assert.equal(run.fake.commits('l2')[1]!.parent, run.fake.lineages.get('l2')![0]!.sha256);
    assert.deepEqual((await run.told('rewound')).length, 1);
    assert.equal((await run.status()).lineage, 'l2');
    assert.deepEqual(
      (await run.status()).trend.map(([of]) => of),
      [1, 2, 3],
    );
  });

  test('a rewind takes the running means of roles back to its step', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 3 },
      fakes: {
        ...holdingStep(gate, 3),
        packBatch: async ({ baselines }, { usual }) => ({
          ...(await usual()),
          baselines: { duel: { first: (baselines?.['duel']?.['first'] ?? 0) + 1 } },
        }),
      },
    });
    await gate.reached;
    await run.atStep(2);
    await run.tell('rewind', 1);
    gate.open();
    await run.result();
    const means = (lineage: string) =>
      run.fake.commits(lineage).map(({ state }) => state.baselines?.['duel']?.['first']);
    assert.deepEqual(means('main').slice(0, 3), [undefined, 1, 2]);
    assert.deepEqual(means('l2'), [1, 2, 3]);
  });

  test('a rewind ends a pause; the step that waited is not made', async () => {
    const run = await begin({
      settings: { maxSteps: 2 },
      fakes: {
        trainBatch: (_, { nth, usual }) => {
          if (nth === 2) throw new RatchetError('TrainerFailing', 'it fails.');
          return usual();
        },
      },
    });
    await run.paused();
    assert.match(await run.tell('rewind', 0), /The pause is over with it \(it was: it fails\. Then resume\.\)\./);
    const { ledger, step } = await run.result();
    assert.deepEqual([step, ledger.isSound], [2, true]);
    assert.deepEqual(
      run.fake.commits('main').map((commit) => commit.step),
      [0, 1],
    );
  });

  test('what is sampled ahead of a rewind is waited for, and in no commit', async () => {
    const [training, sampling] = [new Gate(), new Gate()];
    const run = await begin({
      settings: { maxSteps: 3, maxAsyncLevel: 1 },
      fakes: {
        ...holdingStep(training, 2),
        playGroups: async ({ round, run: { lineage } }, { usual }) => {
          if (round.step === 3 && lineage === 'main') await sampling.pass();
          return usual();
        },
      },
    });
    await Promise.all([training.reached, sampling.reached]);
    await run.tell('rewind', 0);
    training.open();
    await until('step 2', () => run.fake.commits('main').length === 3);
    await aWhile();
    assert.equal(run.fake.lineages.size, 1, 'it waits');
    sampling.open();
    const { ledger } = await run.result();
    assert.ok(ledger.isSound);
    assert.deepEqual(
      run.fake.commits('l2').map((commit) => commit.step),
      [0, 1, 2, 3],
    );
  });

  test('a rewind that the store refuses after all leaves the run where it was', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 2 },
      fakes: {
        ...holdingStep(gate, 2),
        beginLineage: () => {
          throw new RatchetError('Unsupported', 'step 0 can no longer be restored');
        },
      },
    });
    await gate.reached;
    await run.tell('rewind', 0);
    gate.open();
    const { step, ledger } = await run.result();
    assert.deepEqual([step, ledger.isSound, run.fake.lineage], [2, true, 'main']);
    assert.ok((await run.told('warning')).includes('step 0 can no longer be restored'));
  });

  test('a step that cannot be restored is refused at once', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 2 },
      fakes: {
        ...holdingStep(gate, 2),
        checkRewind: () => {
          throw new RatchetError('Unsupported', 'retention has removed it');
        },
      },
    });
    await gate.reached;
    await run.atStep(1);
    assert.match(await failureOf(run.tell('rewind', 0)), /retention has removed it/);
    gate.open();
    assert.equal((await run.result()).step, 2);
  });

  test('weights that retention has removed are made again before they are served', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 2 },
      fakes: {
        ...holdingStep(gate, 2),
        beginLineage: async (_, { usual }) => ({ ...(await usual()), hasWeights: false }),
      },
    });
    await gate.reached;
    await run.atStep(1);
    await run.tell('rewind', 1);
    gate.open();
    await run.result();
    const restored = run.fake.asked.findIndex(({ name }) => name === 'restoreVersion');
    const began = run.fake.asked.findIndex(({ name }) => name === 'beginLineage');
    const served = run.fake.asked.findIndex(({ name }, i) => i > began && name === 'broadcastWeights');
    assert.ok(began < restored && restored < served);
  });

  test('while the run is taken back retention removes nothing', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 3, checkpoints: { interval: 1, keepLast: 1, keepInterval: null } },
      fakes: holdingStep(gate, 2),
    });
    await gate.reached;
    await run.tell('rewind', 0);
    gate.open();
    await run.result();
    const kept = run
      .inputs('saveCheckpoint')
      .map(({ step, run: { lineage }, keepsAll = false }) => [lineage, step, keepsAll]);
    assert.deepEqual(
      kept.filter(([lineage, step]) => lineage === 'main' && step === 2),
      [['main', 2, true]],
    );
    assert.ok(kept.filter(([lineage]) => lineage === 'l2').every(([, , keepsAll]) => keepsAll === false));
  });

  test('cancelled, it ends at once, lets its GPU worker go, and continues from its newest commit later', async () => {
    let ended = 0;
    const gate = new Gate();
    const fakes: Fakes = {
      ...holdingStep(gate, 2),
      leaseTrainer: (_, { usual }) => usual().finally(() => (ended += 1)),
    };
    const run = await begin({ settings: { maxSteps: 2 }, fakes });
    await gate.reached;
    await run.handle.cancel();
    assert.match(await failureOf(run.result()), /Cancelled/);
    await until('the end of the hold', () => ended === 1);
    gate.open();
    const again = await begin({ fake: run.fake });
    const { step, ledger } = await again.result();
    assert.deepEqual([step, ledger.isSound], [2, true]);
    assert.equal(run.fake.commits().filter((commit) => commit.step === 1).length, 1);
  });

  test('a run that other code takes over stays paused for the same reason, with what was set', async () => {
    const first = await begin({ settings: { maxSteps: 1 } });
    await first.result();
    first.fake.spec.maxSteps = 3;
    const asked: AskedOfRun = {
      ...nothingAsked,
      pausedBecause: 'look at the rewards',
      isPausedByPerson: true,
      overrides: { learningRate: 0.125, stopAfter: 2 },
    };
    const input = { takesOver: { handle: first.fake.handle, asked, request: 'before' } };
    const run = await begin({ fake: first.fake, input });
    assert.equal(await run.paused(), 'look at the rewards');
    assert.match(
      (await run.told('upgraded'))[0]!,
      /continues after step 1 under the new code; it is paused as before: look at the rewards$/,
    );
    await run.tell('resume');
    assert.equal((await run.result()).step, 2, 'it is still to be stopped');
    assert.equal(run.inputs('trainBatch').at(-1)!.overrides.learningRate, 0.125);
  });

  test('when to stop was a wish for the execution that has ended; what else was set stays', async () => {
    const gate = new Gate();
    const first = await begin({ settings: { maxSteps: 3 }, fakes: holdingStep(gate) });
    await gate.reached;
    await first.tell('set', { learning_rate: 0.125 });
    await first.tell('stop');
    gate.open();
    assert.equal((await first.result()).step, 1);
    const second = await begin({ fake: first.fake });
    assert.equal((await second.result()).step, 3);
    assert.deepEqual(
      second.inputs('trainBatch').map(({ overrides }) => overrides.learningRate),
      [undefined, 0.125, 0.125],
    );
    assert.match(
      (await second.told('warning'))[0]!,
      /learning rate 0\.125 was set while the run was running, and stays/,
    );
  });

  test('that it is to stop stays with its input through a rewind, as a sweep asks it: a rung is not passed', async () => {
    const gate = new Gate();
    const input = { stopAfter: 2 };
    const run = await begin({ settings: { maxSteps: 4 }, fakes: holdingStep(gate, 2), input });
    await gate.reached;
    await run.tell('rewind', 0);
    gate.open();
    const { step, ledger } = await run.result();
    assert.deepEqual([step, ledger.isSound], [2, true]);
    assert.deepEqual(
      run.fake.commits('l2').map((commit) => [commit.step, commit.state.overrides.stopAfter]),
      [
        [0, 2],
        [1, 2],
        [2, 2],
      ],
    );
  });

  for (const [when, rewind] of [
    ['', null],
    [' while it is taken back', { step: 1, request: 'somebody' }],
  ] as const)
    test(`that it is to stop stays with its input when other code takes it over${when}`, async () => {
      const first = await begin({ settings: { maxSteps: 4 }, input: { stopAfter: 1 } });
      assert.equal((await first.result()).step, 1);
      const asked: AskedOfRun = { ...nothingAsked, overrides: { stopAfter: 3 }, rewind };
      const input = { stopAfter: 3, takesOver: { handle: first.fake.handle, asked, request: 'before' } };
      const run = await begin({
        fake: first.fake,
        input,
        fakes: { openRun: async (_, { usual }) => ({ ...(await usual()), ...(rewind && { isRewound: true }) }) },
      });
      assert.equal((await run.result()).step, 3);
    });

  test('what was asked of it stands in its memo, for when nobody can answer for it', async () => {
    const gate = new Gate();
    const run = await begin({ settings: { maxSteps: 1 }, fakes: holdingStep(gate) });
    await gate.reached;
    await run.tell('pause', 'lunch');
    await run.tell('set', { learning_rate: 0.5 });
    const { memo } = await run.handle.describe();
    assert.deepEqual(memo?.['asked'], {
      pausedBecause: 'lunch',
      isPausedByPerson: true,
      overrides: { learningRate: 0.5 },
      rewind: null,
    });
    await run.tell('resume');
    gate.open();
    await run.result();
  });

  test('it says what it is doing: what it waits for, and how far the steps under way are', async () => {
    const gate = new Gate();
    const run = await begin({ settings: { maxSteps: 2, maxAsyncLevel: 1 }, fakes: holdingStep(gate) });
    await gate.reached;
    await until('the batch ahead', () => run.inputs('packBatch').length === 2);
    const { progress, waitingOn, phase, policy } = await run.status();
    assert.deepEqual(
      [phase, policy, progress.training?.step, progress.training?.from, progress.training?.rows],
      ['training', 'v0', 1, 'v0', 8],
    );
    assert.deepEqual(
      [progress.collecting?.step, progress.collecting?.kept, progress.collecting?.rollouts],
      [2, 2, { done: 8, of: 8 }],
    );
    assert.ok(waitingOn.some(({ what }) => what.startsWith('train step 1: 8 rows onto v0, learning rate')));
    gate.open();
    await run.result();
    const events = await run.events();
    const sequences = events.map(({ sequence }) => sequence);
    assert.deepEqual(
      sequences,
      sequences.map((_, i) => i + 1),
    );
  });
});
