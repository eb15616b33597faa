/** Evaluations of a run's versions beside its loop: when they are due, what they take from the training, and what becomes of them. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { RatchetError } from '../../core/errors.ts';
import type { Regression } from '../../core/eval/regression.ts';
import { regressionFoundSignalName } from '../../core/names.ts';
import { evaluating } from './fake-evaluation.ts';
import { type Fakes, Gate, holdingStep } from './fake-run.ts';
import { ascending, aWhile, failureOf, timesContinued, until } from './look.ts';
import { begin, type BegunRun, closeServer, shortHistoryQueue } from './server.ts';

after(closeServer);

const worse: Regression = {
  isWorse: true,
  isRepeated: true,
  best: { step: 0, name: 'v0', reward: 0.9 },
  reward: 0.1,
  difference: { mean: -0.8, low: -0.9, high: -0.7 },
  examples: 4,
};

/** The evaluation of a step is found to be worse than the best before it. */
function worseAt(step: number): Fakes {
  return {
    recordEvaluation: async ({ policy }, { usual }) => ({
      ...(await usual()),
      regression: policy.step === step ? worse : null,
    }),
  };
}

const evaluatedSteps = (run: BegunRun) => run.inputs('recordEvaluation').map(({ policy }) => policy.step);

describe('evaluations of a run', { concurrency: 8 }, () => {
  test('v0, every interval and the last version are evaluated, recorded and told', async () => {
    const run = await begin({ settings: { maxSteps: 3, eval: evaluating() } });
    const { evals } = await run.result();
    assert.deepEqual(
      evals.map(({ step, environment }) => [step, environment]).toSorted(([a], [b]) => Number(a) - Number(b)),
      [
        [0, 'words'],
        [2, 'words'],
        [3, 'words'],
      ],
    );
    assert.equal((await run.told('eval')).length, 3);
    assert.deepEqual(
      run.fake.commits().map(({ state }) => state.pendingEvals.includes(state.step)),
      [true, false, true, true],
    );
  });

  test('an answer of several lines stays one line in its event', async () => {
    const says = { prompt: 'one\ntwo', completion: 'three\r\nfour\u001b[1m', answer: 'five\n', reward: 1 };
    const run = await begin({
      settings: { maxSteps: 1, eval: evaluating({ skipFirstStep: true }) },
      fakes: {
        recordEvaluation: async (_, { usual }) => {
          const recorded = await usual();
          return { ...recorded, summary: { ...recorded.summary, says } };
        },
      },
    });
    await run.result();
    const [line] = await run.told('eval');
    assert.match(line!, /"one⏎two" → "three⏎four�\[1m" \(right: "five⏎", reward 1\.00\)/);
  });

  test('a version is evaluated as it is sampled, and greedily beside that', async () => {
    const [environment] = evaluating().environments;
    const settings = {
      maxSteps: 1,
      eval: evaluating({ skipFirstStep: true, environments: [{ ...environment!, sampling: null }] }),
    };
    const run = await begin({ settings });
    await run.result();
    const opened = run
      .inputs('openEvaluation')
      .map(({ input: { model, results } }) => [model.kind === 'version' && model.sampling.temperature, results.prefix]);
    assert.deepEqual(new Map(opened as [number, string][]).size, 2);
    const [recorded] = run.inputs('recordEvaluation');
    assert.ok(recorded!.greedy !== null && recorded!.sampled.place.prefix !== recorded!.greedy.place.prefix);
  });

  test('training continues beside an evaluation, and the run ends once it has ended; its weights are kept meanwhile', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 2, eval: evaluating({ interval: 10 }) },
      fakes: {
        evaluateChunk: async ({ handle: { place } }, { usual }) => {
          if (place.prefix.includes('step_0')) await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    await until('the end of the loop', async () => (await run.status()).phase === 'finishing');
    await until('checkpoint 2', () => run.fake.sealed.includes(2));
    assert.ok(run.inputs('saveCheckpoint').at(-1)!.pinned.includes(0));
    assert.equal(run.inputs('auditRun').length, 0);
    gate.open();
    await run.result();
    assert.deepEqual(ascending(evaluatedSteps(run)), [0, 2]);
  });

  test('an evaluation that fails is said with the way to make up for it, and the run continues', async () => {
    const run = await begin({
      settings: { maxSteps: 2, eval: evaluating({ interval: 10 }) },
      fakes: {
        evaluateChunk: (input, { usual }) => {
          if (input.handle.place.prefix.includes('step_0'))
            throw new RatchetError('EnvironmentBroken', 'the judge is broken.');
          return usual();
        },
      },
    });
    const { step, evals } = await run.result();
    assert.deepEqual([step, evals.map((one) => one.step)], [2, [2]]);
    assert.deepEqual(await run.told('warning'), [
      `eval v0 on words failed: the judge is broken. Once that is repaired: npx ratchet-rl eval checkpoints ${run.name} --steps 0`,
    ]);
  });

  test('one that got worse raises a flag, and a later one takes it down', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 3, eval: evaluating({ interval: 1, skipFirstStep: true }) },
      fakes: {
        recordEvaluation: async ({ policy: { step } }, { usual }) => ({
          ...(await usual()),
          regression: { ...worse, isWorse: step === 1 },
        }),
        playGroups: async ({ round }, { usual }) => {
          if (round.step === 3) await gate.pass();
          return usual();
        },
        openEvaluation: async ({ input }, { usual }) => {
          if (input.results.prefix.includes('step_2')) await gate.pass();
          return usual();
        },
      },
    });
    await until('the flag', async () => (await run.status().catch(() => null))?.regressions?.['words']?.step === 1);
    const { memo } = await run.handle.describe();
    assert.deepEqual(Object.keys(memo?.['regression'] as object), ['words']);
    assert.equal((await run.status()).phase, 'training');
    gate.open();
    await run.result();
    assert.deepEqual((await run.status()).regressions, {});
    assert.equal((await run.told('regression')).length, 1);
  });

  test('on_regression = "pause" pauses the run with the way back', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 3, eval: evaluating({ interval: 1, skipFirstStep: true, onRegression: 'pause' }) },
      fakes: {
        ...worseAt(1),
        ...holdingStep(gate, 2),
      },
    });
    await gate.reached;
    assert.match(
      await run.paused(),
      new RegExp(`Resume to continue, or go back: npx ratchet-rl rewind ${run.name} --step 0$`),
    );
    gate.open();
    await run.tell('resume');
    assert.equal((await run.result()).step, 3);
  });

  test('a mark that the evaluation before it does not bear out pauses and stops nothing', async () => {
    for (const onRegression of ['pause', 'stop'] as const) {
      const run = await begin({
        settings: { maxSteps: 3, eval: evaluating({ interval: 1, skipFirstStep: true, onRegression }) },
        fakes: {
          recordEvaluation: async ({ policy }, { usual }) => ({
            ...(await usual()),
            regression: policy.step === 1 ? { ...worse, isRepeated: false } : null,
          }),
        },
      });
      assert.equal((await run.result()).step, 3);
      assert.equal((await run.told('regression')).length, 1);
    }
  });

  test('on_regression = "stop" ends the run after the step under way', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 5, eval: evaluating({ interval: 1, skipFirstStep: true, onRegression: 'stop' }) },
      fakes: {
        ...worseAt(1),
        playGroups: async ({ round }, { usual }) => {
          if (round.step === 2) await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    await until('the end', async () => (await run.told('stopping')).length === 1);
    gate.open();
    assert.equal((await run.result()).step, 2);
  });

  test('an evaluation on a schedule tells the run what it found', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 2 },
      fakes: {
        trainBatch: async (_, { usual }) => {
          await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    await run.handle.signal(regressionFoundSignalName, {
      environment: 'words',
      version: 'v0',
      step: 0,
      regression: worse,
      action: 'pause',
    });
    assert.match(await run.paused(), /words/);
    gate.open();
    await run.tell('resume');
    await run.result();
  });

  test('when = "defer" evaluates after the last step, one version after another', async () => {
    const run = await begin({ settings: { maxSteps: 2, eval: evaluating({ interval: 1, when: 'defer' }) } });
    await run.result();
    const order = run.order('commitStep', 'openEvaluation', 'closeEvaluation');
    const each = ['openEvaluation', 'closeEvaluation'] as const;
    assert.deepEqual(order, ['commitStep', 'commitStep', 'commitStep', ...each, ...each, ...each]);
    assert.ok((await run.events()).filter(({ kind }) => kind === 'eval').every(({ values }) => 'deferred_s' in values));
  });

  test('when = "pause" samples nothing for training from when it is due, and says how long that took', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 2, eval: evaluating({ interval: 1, skipFirstStep: true, when: 'pause' }) },
      fakes: {
        // A machine that is busy: meanwhile the run could lease a round.
        findEvaluation: async ({ step }, { usual }) => {
          if (step === 1) await aWhile();
          return usual();
        },
        evaluateChunk: async ({ handle: { place } }, { usual }) => {
          if (place.prefix.includes('step_1')) await gate.pass();
          return usual();
        },
      },
    });
    const played = (): number => run.inputs('playGroups').filter(({ round }) => round.step === 2).length;
    await gate.reached;
    await aWhile();
    assert.equal(played(), 0);
    const label = 'the policy servers (an evaluation has them for itself), then broadcast v1 to ';
    const waits = (await run.status()).waitingOn.map(({ what }) => what);
    assert.ok(
      waits.some((what) => what.startsWith(label)),
      waits.join(),
    );
    gate.open();
    await run.result();
    const [told] = (await run.events()).filter(({ kind }) => kind === 'eval');
    assert.ok(Number(told!.values['paused_s']) > 0.2);
    const waited = run.fake.commits()[2]!.metrics['time/wait_for_eval']!;
    assert.ok(waited > 0.2, `${waited}`);
  });

  test("servers that hold one version are an evaluation's alone, and that is said once", async () => {
    const under = { rollouts: 0, evaluations: 0 };
    let isTogether = false;
    const during = async <T>(what: keyof typeof under, work: () => Promise<T>): Promise<T> => {
      under[what] += 1;
      isTogether ||= under.rollouts > 0 && under.evaluations > 0;
      await aWhile();
      under[what] -= 1;
      return work();
    };
    const run = await begin({
      settings: { maxSteps: 3, eval: evaluating({ interval: 1, skipFirstStep: true }) },
      fakes: {
        holdVersion: () => 'single',
        playGroups: (_, { usual }) => during('rollouts', usual),
        evaluateChunk: (_, { usual }) => during('evaluations', usual),
      },
    });
    await run.result();
    assert.equal(isTogether, false);
    assert.equal(
      (await run.told('warning')).filter((text) =>
        text.startsWith('the inference servers sample from one version at a time'),
      ).length,
      1,
    );
  });

  test('what was due and is recorded already is not evaluated again; what is not, is', async () => {
    const gate = new Gate();
    const first = await begin({
      settings: { maxSteps: 2, eval: evaluating({ interval: 1 }) },
      fakes: {
        openEvaluation: async ({ input }, { usual }) => {
          if (!input.results.prefix.includes('step_0')) await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    await until('v0', () => first.fake.recorded.has('words@0'));
    await first.atStep(2);
    await first.handle.terminate();
    for (const step of [1, 2])
      await first.client.workflow
        .getHandle(`${first.name}.eval.words.v${step}`)
        .terminate()
        .catch(() => undefined);
    const second = await begin({ fake: first.fake });
    await second.result();
    assert.deepEqual([...second.fake.recorded].toSorted(), ['words@0', 'words@1', 'words@2']);
    assert.equal(evaluatedSteps(second).filter((step) => step === 0).length, 1);
  });

  test('an evaluation that another execution began is not begun twice: its end is waited for', async () => {
    const gate = new Gate();
    const first = await begin({
      settings: { maxSteps: 1, eval: evaluating() },
      fakes: {
        evaluateChunk: async ({ handle: { place } }, { usual }) => {
          if (place.prefix.includes('step_0')) await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    await first.atStep(1);
    await first.handle.terminate();
    const second = await begin({ fake: first.fake });
    await second.atStep(1);
    await aWhile();
    gate.open();
    const { evals } = await second.result();
    assert.deepEqual(ascending(evals.map(({ step }) => step)), [0, 1]);
    assert.equal(
      second.inputs('openEvaluation').filter(({ input }) => input.results.prefix.includes('step_0')).length,
      1,
    );
  });

  test('continued as new, a run continues waiting for the evaluations that are under way', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 7, eval: evaluating({ interval: 100 }) },
      taskQueue: shortHistoryQueue,
      fakes: {
        evaluateChunk: async ({ handle: { place } }, { usual }) => {
          if (place.prefix.includes('step_0')) await gate.pass();
          return usual();
        },
      },
    });
    await run.atStep(6);
    gate.open();
    const { evals } = await run.result();
    assert.ok((await timesContinued(run)) >= 1);
    assert.deepEqual(ascending(evals.map(({ step }) => step)), [0, 7]);
    // One that is not heard of for a while is opened again, and finds what it had; it is recorded once.
    assert.deepEqual(ascending(run.inputs('recordEvaluation').map(({ policy }) => policy.step)), [0, 7]);
  });

  test('a rewind cancels the evaluations of later versions, and they are recorded nowhere', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 2, eval: evaluating({ interval: 1, skipFirstStep: true }) },
      fakes: {
        evaluateChunk: async ({ handle: { place } }, { usual }) => {
          if (!place.prefix.includes('l2')) await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    await run.atStep(2);
    await run.tell('rewind', 0);
    const child = run.client.workflow.getHandle(`${run.name}.eval.words.v1`);
    assert.match(await failureOf(child.result()), /Cancelled/);
    const { evals } = await run.result();
    assert.deepEqual(ascending(evals.map(({ step }) => step)), [1, 2]);
    assert.ok(run.inputs('recordEvaluation').every(({ policy }) => policy.weights.startsWith('lineages/l2/')));
  });

  test('a run that is cancelled cancels its evaluations', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 1, eval: evaluating() },
      fakes: {
        evaluateChunk: async (_, { usual }) => {
          await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    await run.handle.cancel();
    assert.match(await failureOf(run.result()), /Cancelled/);
    const child = run.client.workflow.getHandle(`${run.name}.eval.words.v0`);
    assert.match(await failureOf(child.result()), /Cancelled/);
  });
});
