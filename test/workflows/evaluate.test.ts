/** An evaluation: opened, chunk after chunk, closed; several of a file; and the newest checkpoint, on a schedule. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { Context } from '@temporalio/activity';
import { tellWorkflow } from '../../activities/around/tell-workflow.ts';
import { RatchetError } from '../../core/errors.ts';
import type {
  EvaluationInput,
  EvaluationNotice,
  EvaluationResult,
  EvaluationStatus,
} from '../../core/eval/evaluation.ts';
import type { Regression } from '../../core/eval/regression.ts';
import { chunkLeftSignalName, evaluationEndedSignalName, memoKeys, queueOfPool, taskQueues } from '../../core/names.ts';
import type { EvaluatedNewest } from '../../workflows/evaluate-newest.ts';
import { closedEvaluation, evaluationOf, openedEvaluation, tallyWith } from './fake-evaluation.ts';
import { type Fakes, Gate, versionAfter } from './fake-run.ts';
import { testPools } from './fake-training.ts';
import { ascending, aWhile, failureOf, until } from './look.ts';
import { begin, type BegunRun, closeServer, freshName } from './server.ts';

after(closeServer);

const evaluateOne = (fakes: Fakes = {}, of: Partial<EvaluationInput> = {}): Promise<BegunRun> =>
  begin({ type: 'evaluate', args: [{ ...evaluationOf('place', 'words'), ...of }], fakes });

const statusOf = (run: BegunRun) => run.handle.query<EvaluationStatus>('status');

const resultsOf = async (run: BegunRun): Promise<readonly EvaluationResult[]> =>
  ((await run.handle.result()) as { results: readonly EvaluationResult[] }).results;

describe('an evaluation', { concurrency: 8 }, () => {
  test('is opened, played chunk by chunk, and closed with what was found and sampled', async () => {
    const run = await evaluateOne({
      evaluateChunk: ({ chunk }) => ({ chunk, tally: tallyWith(2, chunk), adopted: 1, seconds: 0.1 }),
    });
    const [result] = await resultsOf(run);
    assert.equal(result!.environment, 'words');
    assert.deepEqual(
      run.inputs('evaluateChunk').map(({ chunk }) => chunk),
      [0, 1],
    );
    assert.deepEqual(
      run.inputs('closeEvaluation').map(({ adopted }) => adopted),
      [2],
    );
    const { phase, rollouts, avgReward } = await statusOf(run);
    assert.deepEqual([phase, rollouts, avgReward], ['finished', { done: 4, of: 4, failed: 0 }, 0.5]);
    assert.ok(run.inputs('noteProgress').length >= 1);
  });

  test('no more chunks are played at once than its model takes, and it says which', async () => {
    const gate = new Gate();
    let [atOnce, most] = [0, 0];
    const run = await evaluateOne({
      openEvaluation: ({ input }) => ({ ...openedEvaluation(input), chunks: 5, examples: 10, inFlight: 2 }),
      evaluateChunk: async (_, { usual }) => {
        most = Math.max(most, (atOnce += 1));
        await gate.pass();
        atOnce -= 1;
        return usual();
      },
    });
    await gate.reached;
    await aWhile();
    assert.deepEqual((await statusOf(run)).waitingOn, ['examples 1–2 of 10 × 1', 'examples 3–4 of 10 × 1']);
    gate.open();
    await resultsOf(run);
    assert.equal(most, 2);
    assert.deepEqual(ascending(run.inputs('evaluateChunk').map(({ chunk }) => chunk)), [0, 1, 2, 3, 4]);
  });

  test('chunks with few rollouts left make room for the next ones', async () => {
    const gate = new Gate();
    const run = await evaluateOne({
      openEvaluation: ({ input }) => ({ ...openedEvaluation(input), chunks: 4, examples: 8, inFlight: 8, atOnce: 4 }),
      evaluateChunk: async ({ chunk }, { usual }) => {
        if (chunk > 1) return usual();
        await tellWorkflow(chunkLeftSignalName, chunk, 2);
        await gate.pass();
        return usual();
      },
    });
    await until('the others are played', () => run.inputs('evaluateChunk').length === 4);
    await aWhile();
    assert.deepEqual((await statusOf(run)).waitingOn, ['examples 1–2 of 8 × 1', 'examples 3–4 of 8 × 1']);
    gate.open();
    await resultsOf(run);
  });

  test('a chunk whose servers are away is asked for again, alone', async () => {
    const run = await evaluateOne({
      evaluateChunk: ({ chunk }, { nth, usual }) => {
        if (chunk === 1 && nth === 2) throw new RatchetError('InferenceUnavailable', 'connection refused');
        return usual();
      },
    });
    await resultsOf(run);
    assert.deepEqual(
      run.inputs('evaluateChunk').map(({ chunk }) => chunk),
      [0, 1, 1],
    );
  });

  test('a refusal ends it once the chunks under way have ended, and no other is begun', async () => {
    const gate = new Gate();
    let isPlayed = false;
    const run = await evaluateOne({
      openEvaluation: ({ input }) => ({ ...openedEvaluation(input), chunks: 4, inFlight: 2 }),
      evaluateChunk: async ({ chunk }, { usual }) => {
        if (chunk === 0) throw new RatchetError('InferenceRejected', 'no such model');
        await gate.pass();
        isPlayed = true;
        return usual();
      },
    });
    await gate.reached;
    await aWhile();
    gate.open();
    assert.match(await failureOf(run.handle.result()), /^InferenceRejected: no such model/);
    assert.deepEqual(
      [isPlayed, run.inputs('evaluateChunk').length, run.inputs('closeEvaluation').length],
      [true, 2, 0],
    );
  });

  test('whoever asked is told how it ended: with its result, its failure, or that it was cancelled', async () => {
    const [good, bad, cancelled] = [new Gate(), new RatchetError('Unsupported', 'no examples'), new Gate()];
    const told = async (fakes: Fakes, then: (run: BegunRun) => Promise<unknown>): Promise<EvaluationNotice> => {
      // A run that waits for its GPU worker hears signals, and has them in its history.
      const listener = await begin({ settings: { maxSteps: 1 }, fakes: { warmUp: () => new Gate().pass() as never } });
      const notify = { workflowId: listener.name, signal: evaluationEndedSignalName };
      const run = await evaluateOne(fakes, { notify });
      await then(run);
      const { events } = await listener.handle.fetchHistory();
      const signals = (events ?? []).flatMap(({ workflowExecutionSignaledEventAttributes: of }) =>
        of?.signalName === evaluationEndedSignalName ? [of] : [],
      );
      await listener.handle.terminate();
      return JSON.parse(Buffer.from(signals[0]!.input!.payloads![0]!.data!).toString()) as EvaluationNotice;
    };
    good.open();
    const ends = await Promise.all([
      told({}, (run) => run.handle.result()),
      told({ openEvaluation: () => Promise.reject(bad) }, (run) => failureOf(run.handle.result())),
      told(
        {
          evaluateChunk: async (_, { usual }) => {
            await cancelled.pass();
            return usual();
          },
        },
        async (run) => {
          await cancelled.reached;
          await run.handle.cancel();
          await failureOf(run.handle.result());
        },
      ),
    ]);
    assert.deepEqual(
      ends.map((end) => ('failed' in end ? end.failed : end.result.environment)),
      ['words', 'no examples', 'it was cancelled'],
    );
  });

  test('a file has a workflow for each of its evaluations, and results in their order', async () => {
    const run = await begin({ type: 'evaluate', args: ['some.toml'] });
    const results = await resultsOf(run);
    assert.deepEqual(
      results.map(({ environment }) => environment),
      ['one', 'two'],
    );
    assert.equal(run.inputs('planEvaluations')[0]!.config, 'some.toml');
    const { parts } = await statusOf(run);
    assert.deepEqual(parts, [`${run.name}.one.${run.name}`, `${run.name}.two.${run.name}`]);
  });

  test('one that fails keeps no other of its file from its end, and the file fails with its name', async () => {
    const run = await begin({
      type: 'evaluate',
      args: [{ config: 'some.toml' }],
      fakes: {
        openEvaluation: ({ input }, { usual }) => {
          if (input.environment.name === 'one') throw new RatchetError('EnvironmentUnknown', 'no such environment.');
          return usual();
        },
      },
    });
    assert.equal(
      await failureOf(run.handle.result()),
      'EvaluationsFailed: 1 of 2 evaluations failed. one: no such environment.',
    );
    assert.deepEqual(
      run.inputs('closeEvaluation').map(({ handle }) => handle.environment),
      ['two'],
    );
  });

  test('as many evaluations of a list are at work side by side as is asked', async () => {
    const name = freshName();
    let [atOnce, most] = [0, 0];
    const run = await begin({
      type: 'evaluate',
      args: [
        {
          inputs: ['a', 'b', 'c'].map((one) => evaluationOf(name, one)),
          title: 'three',
          names: ['a', 'b', 'c'],
          atOnce: 1,
        },
      ],
      fakes: {
        openEvaluation: async (_, { usual }) => {
          most = Math.max(most, (atOnce += 1));
          return usual();
        },
        closeEvaluation: ({ handle }) => {
          atOnce -= 1;
          return closedEvaluation(handle);
        },
      },
    });
    assert.equal((await resultsOf(run)).length, 3);
    assert.equal(most, 1);
  });

  test('cancelled, a file cancels its evaluations', async () => {
    const gate = new Gate();
    const run = await begin({
      type: 'evaluate',
      args: ['some.toml'],
      fakes: {
        evaluateChunk: async (_, { usual }) => {
          await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    await run.handle.cancel();
    assert.match(await failureOf(run.handle.result()), /Cancelled/);
    const child = run.client.workflow.getHandle(`${run.name}.one.${run.name}`);
    assert.match(await failureOf(child.result()), /Cancelled/);
  });
});

const worse: Regression = {
  isWorse: true,
  isRepeated: true,
  best: { step: 2, name: 'v2', reward: 0.9 },
  reward: 0.1,
  difference: { mean: -0.8, low: -0.9, high: -0.7 },
  examples: 4,
};

describe('the newest checkpoint on a schedule', { concurrency: 8 }, () => {
  /** A run that can receive signals. */
  async function evaluateNewest(fakes: Fakes, onRegression: 'flag' | 'pause' = 'flag') {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 1 },
      fakes: {
        trainBatch: async (_, { usual }) => {
          await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    const policy = versionAfter(4, 'main');
    const model = {
      kind: 'version' as const,
      model: run.name,
      run: run.fake.handle,
      policy,
      sampling: run.fake.spec.sampling,
    };
    const planned = { name: 'words.v4', input: { ...evaluationOf(run.name, 'words'), model } };
    const scheduled = await begin({
      type: 'evaluateNewest',
      args: [{ config: null, run: { name: run.name, store: 'file:///nowhere/' }, onRegression }],
      fakes: { planNewest: () => [planned as never], ...fakes },
    });
    const result = scheduled.handle.result() as Promise<EvaluatedNewest>;
    result.catch(() => undefined);
    return { run, result, finish: () => (gate.open(), run.result()) };
  }

  test('is evaluated and held against the best before it', async () => {
    const { result, finish } = await evaluateNewest({});
    const { step, results, regressions } = await result;
    assert.deepEqual([step, results.map(({ environment }) => environment), regressions], [4, ['words'], []]);
    await finish();
  });

  test('one that got worse is said, here and at its run, which pauses where that is asked for', async () => {
    const { run, result, finish } = await evaluateNewest({ judgeEvaluation: () => worse }, 'pause');
    assert.equal((await result).regressions.length, 1);
    await run.paused();
    assert.equal((await run.status()).regressions?.['words']?.step, 4);
    await run.tell('resume');
    await finish();
  });

  test('one of which every rollout failed fails, so that its schedule pauses', async () => {
    const { result, finish } = await evaluateNewest({
      closeEvaluation: ({ handle }) => ({ ...closedEvaluation(handle), failed: 4, failures: ['4 × no such model'] }),
    });
    assert.match(await failureOf(result), /^EvaluationFailed: all 4 rollouts of words failed \(.*4 × no such model/);
    await finish();
  });

  test('a model of a file is evaluated without any run', async () => {
    const run = await begin({
      type: 'evaluateNewest',
      args: [{ config: 'some.toml', run: null, onRegression: 'flag' }],
    });
    const { step, results } = (await run.handle.result()) as EvaluatedNewest;
    assert.deepEqual([step, results.length], [null, 2]);
  });

  test('one of a pool is played by the rollout workers of that pool', async () => {
    const queues = new Set<string>();
    const run = await begin({
      type: 'evaluateNewest',
      args: [{ config: 'some.toml', run: null, onRegression: 'flag' }],
      memo: { [memoKeys.pool]: testPools[0]! },
      fakes: {
        evaluateChunk: async (_, { usual }) => {
          queues.add(Context.current().info.taskQueue);
          return usual();
        },
      },
    });
    await run.handle.result();
    assert.deepEqual([...queues], [queueOfPool(taskQueues.rollout, testPools[0])]);
  });
});
