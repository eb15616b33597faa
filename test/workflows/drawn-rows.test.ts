/** A run with `[data]`: no rollouts, each step is trained on the next of its rows. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import type { RunSpec } from '../../config/run-spec.ts';
import { evaluating } from './fake-evaluation.ts';
import { Gate } from './fake-run.ts';
import { timesContinued } from './look.ts';
import { begin, closeServer, shortHistoryQueue } from './server.ts';

after(closeServer);

const data: NonNullable<RunSpec['data']> = {
  rows: { path: '/rows.jsonl', sha256: '00' },
  seqLen: 64,
  batchSize: 2,
  shuffle: true,
};
const settings: Partial<RunSpec> = { data, environments: [], maxSteps: 4 };
/** The fake draws five rows a step. */
const places = [0, 5, 10, 15];

describe('a run on rows', { concurrency: 4 }, () => {
  test('each step draws on from where the one before ended, and nothing is leased, played or served', async () => {
    const run = await begin({ settings });
    const { step, ledger } = await run.result();
    assert.deepEqual([step, ledger.issued, ledger.isSound], [4, 0, true]);
    const each = ['drawRows', 'trainBatch', 'commitStep'];
    const order = run.order('drawRows', 'trainBatch', 'commitStep', 'leaseGroups', 'broadcastWeights');
    assert.deepEqual(order, ['commitStep', ...each, ...each, ...each, ...each]);
    assert.deepEqual(
      run.inputs('drawRows').map(({ from }) => from.row),
      places,
    );
    assert.deepEqual(
      run.fake.commits().map(({ state }) => state.rows?.row),
      [undefined, 5, 10, 15, 20],
    );
    assert.match((await run.told('step'))[0]!, /^step 1 of 4 {2}loss \S+ {2}5 rows, 20 tokens learned/);
  });

  test('rows of the next step are drawn while a step trains, and none is left out or drawn for two', async () => {
    const run = await begin({ settings: { ...settings, maxAsyncLevel: 1 } });
    await run.result();
    assert.deepEqual(
      run.inputs('drawRows').map(({ from }) => from.row),
      places,
    );
    assert.deepEqual(
      run.fake.commits().map(({ state }) => state.rows?.row),
      [undefined, 5, 10, 15, 20],
    );
  });

  test('an execution that is continued goes on with the next rows', async () => {
    const run = await begin({ settings: { ...settings, maxSteps: 9, maxAsyncLevel: 1 }, taskQueue: shortHistoryQueue });
    await run.result();
    assert.ok((await timesContinued(run)) >= 1);
    assert.deepEqual(
      run.fake.commits().flatMap(({ state }) => state.rows?.row ?? []),
      [5, 10, 15, 20, 25, 30, 35, 40, 45],
    );
  });

  test('a batch that is refused is set aside, and the rows behind it are trained', async () => {
    const run = await begin({
      settings,
      fakes: {
        trainBatch: async (_, { nth, usual }) =>
          nth === 1 ? { ...(await usual()), policy: null, reason: 'the loss is not a number' } : usual(),
      },
    });
    await run.result();
    assert.deepEqual(
      run.inputs('drawRows').map(({ from }) => from.row),
      [...places, 20],
    );
    assert.equal(run.fake.commits()[1]!.state.rows?.row, 10);
  });

  test('an evaluation is made of the versions at its interval, which are served for it', async () => {
    const run = await begin({ settings: { ...settings, eval: evaluating() } });
    const { step, ledger } = await run.result();
    assert.deepEqual([step, ledger.isSound], [4, true]);
    const evaluated = run
      .inputs('openEvaluation')
      .map(({ input: { model } }) => (model.kind === 'version' ? model.policy.step : null));
    assert.deepEqual(
      evaluated.toSorted((a, b) => a! - b!),
      [0, 2, 4],
    );
    const served = run.inputs('broadcastWeights').map(({ policy }) => policy.step);
    assert.ok(
      [0, 2, 4].every((one) => served.includes(one)),
      served.join(),
    );
    assert.equal(run.inputs('leaseGroups').length, 0);
  });

  for (const maxAsyncLevel of [0, 1]) {
    test(`a rewind draws the rows behind its step again, at level ${maxAsyncLevel}`, async () => {
      const gate = new Gate();
      const run = await begin({
        settings: { ...settings, maxAsyncLevel },
        fakes: {
          trainBatch: async (_, { nth, usual }) => {
            if (nth === 3) await gate.pass();
            return usual();
          },
        },
      });
      await gate.reached;
      await run.atStep(2);
      await run.tell('rewind', 1);
      gate.open();
      const { step, ledger } = await run.result();
      assert.deepEqual([step, ledger.isSound], [4, true]);
      assert.deepEqual(
        run.fake.commits('l2').map(({ state }) => state.rows?.row),
        [5, 10, 15, 20],
      );
      const again = run.inputs('drawRows').filter(({ run: { lineage } }) => lineage === 'l2');
      assert.deepEqual(
        again.map(({ from }) => from.row),
        [5, 10, 15],
      );
    });
  }
});
