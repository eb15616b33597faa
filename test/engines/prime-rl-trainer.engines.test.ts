/** prime-rl's own trainer beside the embedded engine, and what it is never given. `npm run test:engines` */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import path from 'node:path';
import { after, before, describe, test, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import {
  engineLogprobs,
  gradientSteps,
  lossOf,
  nearPolicy,
  planOf,
  rowsOf,
  temporaryFolder,
  updateDifference,
  writePreset,
} from '../../backends/testing/material.ts';
import { OnnxTrainer } from '../../backends/trainer/onnx.ts';
import type { AnyTrainer } from '../../backends/trainer/index.ts';
import type { PrimeRlTrainer } from '../../backends/trainer/prime-rl.ts';
import { batchOf, type TrainSample } from '../../core/rl/learning/batch.ts';
import { type Forks, type PrimeRl, primeRl, startForks, writePython } from './prime-rl/installations.ts';
import { newestStart } from './prime-rl/processes.ts';
import { openPrimeRl } from './prime-rl/trainer.ts';

const found = primeRl('head');
const skip = 'missing' in found ? found.missing : false;
const weightsProgram = fileURLToPath(new URL('./prime-rl/checkpoint_weights.py', import.meta.url));
const allWeights = { lora: null, seed: 1 };
const run = promisify(execFile);
let forks: Forks;

describe('prime-rl’s trainer', { skip }, () => {
  before(async () => {
    forks = await startForks(found as PrimeRl);
  });
  after(() => forks.close());

  for (const ranks of [1, 2]) {
    test(`on ${ranks} ranks updates the weights as the embedded engine does, but for bfloat16`, async (t) => {
      const model = await writePreset(path.join(await temporaryFolder(t), 'model'));
      const rows = nearPolicy(await rowsOf(model), await engineLogprobs(model, await rowsOf(model), 1));
      const plan = planOf({ loss: lossOf('dppo'), learningRate: 1, optimizer: gradientSteps });
      const step = { plan, batch: batchOf(rows), referenceFolder: model };

      const engine = new OnnxTrainer({ threads: 1 });
      t.after(() => engine.close());
      await engine.open(model, allWeights);
      await engine.trainStep(step);
      const expected = await temporaryFolder(t);
      await engine.exportTo(expected, { base: '' });

      const trainer = opened(t, forks.python, ranks);
      await trainer.open(model, allWeights);
      const outcome = await trainer.trainStep(step);
      assert.equal(outcome.applied, true, outcome.reason);
      const [checkpoint, own] = [await temporaryFolder(t), await temporaryFolder(t)];
      await trainer.saveOptimizer(checkpoint);
      await run(forks.python, [weightsProgram, checkpoint, own]);
      const apart = await updateDifference(model, expected, own);
      t.diagnostic(`‖Δ − Δ′‖ / ‖Δ‖ = ${apart}`);
      assert.ok(apart < 0.03, `the updates are ${apart} of their length apart`);
    });
  }

  test('moves adapters as the embedded engine does, but for bfloat16', async (t) => {
    const root = await temporaryFolder(t);
    const model = await writePreset(path.join(root, 'model'));
    const part = {
      lora: { r: 4, alpha: 8, dropout: 0, targetModules: ['q_proj', 'v_proj', 'o_proj', 'down_proj'] },
      seed: 3,
    };
    const trainer = opened(t, forks.python, 2);
    await trainer.open(model, part);
    await trained(trainer, model, await rowsOf(model));
    const exported = async (from: AnyTrainer): Promise<string> => {
      const folder = await temporaryFolder(t);
      await from.exportTo(folder, { base: path.relative(folder, model) });
      return folder;
    };
    // It continues from adapters with their moments alone, so the second step is one that looks at no moments.
    const first = await exported(trainer);
    const rows = nearPolicy(await rowsOf(model), await engineLogprobs(first, await rowsOf(model), 1));
    const optimizer = { ...gradientSteps, beta1: 0, beta2: 0 };
    const plan = planOf({ loss: lossOf('dppo'), step: 2, learningRate: 1, optimizer });
    const step = { plan, batch: batchOf(rows), referenceFolder: model };
    const engine = new OnnxTrainer({ threads: 1 });
    t.after(() => engine.close());
    await engine.open(first, part);
    await engine.restoreOptimizer(null);
    for (const one of [engine, trainer]) assert.equal((await one.trainStep(step)).applied, true);
    const apart = await updateDifference(first, await exported(engine), await exported(trainer));
    t.diagnostic(`‖Δ − Δ′‖ / ‖Δ‖ = ${apart}`);
    assert.ok(apart < 0.05, `the updates are ${apart} of their length apart`);
  });

  test('started as users start it gives the bits that its forks give', async (t) => {
    const folder = await temporaryFolder(t);
    const model = await writePreset(path.join(folder, 'model'));
    const digests = [];
    for (const python of [forks.python, writePython(folder, found as PrimeRl)]) {
      const trainer = opened(t, python, 1);
      await trainer.open(model, allWeights);
      digests.push(await trained(trainer, model, await rowsOf(model)));
    }
    assert.equal(digests[0], digests[1]);
  });

  test('is never given a batch that it would train on as it is, wait for ever at, or die of', async (t) => {
    const model = await writePreset(path.join(await temporaryFolder(t), 'model'));
    const rows = await rowsOf(model);
    const long = Array.from({ length: 65 }, () => 5);
    const wrong: readonly (readonly [string, (row: TrainSample) => TrainSample, RegExp])[] = [
      ['no number', (row) => ({ ...row, behaviorLogprobs: row.lossMask.map((mask) => (mask ? NaN : 0)) }), /NaN/],
      ['an unknown token', (row) => ({ ...row, tokenIds: row.tokenIds.with(1, 30) }), /30/],
      ['a row that is too long', () => rowOf(long), /65/],
      ['no loss', (row) => ({ ...row, lossMask: row.lossMask.map(() => 0) }), /no token/],
    ];
    const trainer = opened(t, forks.python, 1); // closed before the folder that it works in is removed
    const pending = await temporaryFolder(t);
    process.env['RATCHET_PENDING'] = pending;
    await trainer.open(model, allWeights);
    for (const [what, change, said] of wrong) {
      const given = rows.map((row, i) => (i === 0 || what === 'no loss' ? change(row) : row));
      const step = trainer.trainStep({
        plan: planOf({ loss: lossOf('dppo') }),
        batch: batchOf(given),
        referenceFolder: model,
      });
      const outcome = await step.then(
        ({ applied, reason = '' }) => ({ applied, reason }),
        (error: Error) => ({ applied: false, reason: error.message }),
      );
      assert.equal(outcome.applied, false, what);
      assert.match(outcome.reason, said, what);
    }
    assert.throws(() => newestStart(pending), /no trainer was started/, 'none was started for them');
    await trained(trainer, model, rows);
  });
});

function opened(t: TestContext, python: string, ranks: number): PrimeRlTrainer {
  const trainer = openPrimeRl(python, { ranks });
  t.after(() => trainer.close());
  return trainer;
}

async function trained(trainer: PrimeRlTrainer, model: string, rows: readonly TrainSample[]): Promise<string> {
  const outcome = await trainer.trainStep({
    plan: planOf({ loss: lossOf('dppo') }),
    batch: batchOf(rows),
    referenceFolder: model,
  });
  assert.equal(outcome.applied, true, outcome.reason);
  return outcome.digest;
}

function rowOf(tokenIds: number[]): TrainSample {
  const perToken = (value: number): number[] => tokenIds.map((_, i) => (i === 0 ? 0 : value));
  return { tokenIds, lossMask: perToken(1), behaviorLogprobs: perToken(-3), advantages: perToken(1) };
}
