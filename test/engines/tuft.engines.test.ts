import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { examineServer } from '../../backends/tinker/examine.ts';
import { TinkerClient } from '../../backends/tinker/index.ts';
import { readVersion } from '../../backends/tinker/version-files.ts';
import { TinkerTrainer } from '../../backends/trainer/tinker.ts';
import { lossOf, planOf, rowsOf } from '../../backends/testing/index.ts';
import { batchOf } from '../../core/rl/learning/batch.ts';
import { decodeSafetensors, EngineOptimizer, openModel, presetFiles, saveModelFolder } from '../../engine/index.ts';
import { choosePort } from '../../workers/stack/ports.ts';
import { findTuft, Tuft, tuftKey, tuftModel } from './tuft.ts';

/** TuFT's training half, real, on the CPU: `npm run test:engines` where RATCHET_TUFT_PYTHON names a Python that has it. */

const found = await findTuft();
const skip = 'missing' in found ? `no TuFT here: ${found.missing}` : false;
if (skip) process.stderr.write(`skipped: ${skip}\n`);

const preset = 'preset:reverse-text-0.2m';
const variable = 'RATCHET_TEST_TUFT_KEY';
const targetModules = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'];
const part = { lora: { r: 4, alpha: 32, dropout: 0, targetModules }, seed: 3 };

describe('TuFT trains', { skip }, () => {
  let folder: string;
  let server: Tuft;
  let base: string;
  before(async () => {
    if ('missing' in found) return;
    process.env[variable] = tuftKey;
    folder = await mkdtemp(path.join(os.tmpdir(), 'tuft-'));
    base = path.join(folder, 'qwen3-tiny');
    await saveModelFolder(await openModel(preset, { seed: 0 }), base);
    server = new Tuft(found.python, { folder, model: base, port: await choosePort(0) });
    await server.start();
  });
  after(async () => {
    await server?.kill();
    await rm(folder, { recursive: true, force: true });
  });

  const at = () => ({ url: server.url, apiKeyVar: variable, server: 'skyrl' as const });
  const openTrainer = (): TinkerTrainer =>
    new TinkerTrainer(
      { kind: 'tinker', ...at(), baseModel: null, reduction: null, checkpointTtlS: null, checkpointDir: server.checkpointDir }, // prettier-ignore
      { patienceMs: 180_000 },
    );

  test('what it does is found out: sums, several models, and all settings of Adam', async (t) => {
    const client = new TinkerClient(at());
    t.after(() => client.close());
    assert.deepEqual(await examineServer(client, { baseModel: tuftModel, rank: 4, seed: 1 }, () => undefined), {
      loss: { reduction: 'sum', over: 'step', linearIn: 'weights' },
      losses: ['importance_sampling', 'ppo', 'cispo'],
      models: 'several',
      sampling: 'apart',
      ignored: [],
      unknown: [],
    });
  });

  for (const [type, aggregation] of [
    ['grpo', 'token'],
    ['cispo', 'sequence'],
    ['importance_sampling', 'dr_grpo'],
    ['dppo', 'token'],
  ] as const) {
    test(`${type}, by ${aggregation}: its gradient is that of the embedded engine`, async (t) => {
      const trainer = openTrainer();
      t.after(() => trainer.close());
      const [v0, v1] = [path.join(folder, `${type}-0`), path.join(folder, `${type}-1`)];
      await trainer.makeBase(v0, { ...part, files: presetFiles(preset) });
      const samples = await rowsOf(v0, { count: 8, seed: 5 });
      // A large ε and no clipping: then Adam's step is the gradient's, scale and all.
      const optimizer = { beta1: 0.9, beta2: 0.999, epsilon: 1e3, weightDecay: 0, maxGradNorm: 1e9 };
      const loss = { ...lossOf(type), aggregation, maxTokens: 16 };
      const plan = { ...planOf({ loss, learningRate: 1e5 }), optimizer };
      const outcome = await trainer.trainStep({ plan, batch: batchOf(samples) });
      assert.ok(outcome.applied, outcome.reason);
      await trainer.exportTo(v1);
      const engine = await EngineOptimizer.open(v0, { threads: 1 });
      t.after(() => engine.close());
      await engine.trainStep(samples, { learningRate: 1e5, optimizer, loss, temperature: 1, klBeta: 0 });
      const { tensors } = decodeSafetensors(await readFile(path.join(v1, 'adapter_model.safetensors')), v1);
      let [largest, moved] = [0, 0];
      for (const { name } of engine.adapter!.layout) {
        const ours = tensors.get(name)!.data as Float32Array;
        engine.adapter!.view(name).forEach((value, i) => (largest = Math.max(largest, Math.abs(value - ours[i]!))));
        moved = Math.max(moved, ...ours.map(Math.abs));
      }
      t.diagnostic(`the largest change is ${moved.toPrecision(3)}, the adapters differ by ${largest.toExponential(1)}`);
      assert.ok(moved > 1 && largest < 1e-4 * Math.max(1, moved), `${largest} of ${moved}`);
    });
  }

  test('killed in the middle of a step and started again: the step is made once, to the same bits, from its checkpoint', async (t) => {
    const trainer = openTrainer();
    t.after(() => trainer.close());
    const [v0, v1] = [path.join(folder, 'killed-0'), path.join(folder, 'killed-1')];
    await trainer.makeBase(v0, { ...part, files: presetFiles(preset) });
    const samples = await rowsOf(v0, { count: 16, seed: 6 });
    const step = (number: number) => ({
      plan: planOf({ loss: lossOf('grpo'), learningRate: 1e-2 }),
      batch: batchOf(samples.slice(8 * (number - 1), 8 * number)),
    });
    await trainer.trainStep(step(1));
    const state = await trainer.saveOptimizer();
    await trainer.exportTo(v1);
    const expected = await trainer.trainStep(step(2));
    await trainer.open(v1, part);
    await trainer.restoreOptimizer(state);
    const again = trainer.trainStep(step(2));
    await server.kill();
    await server.start();
    const outcome = await again;
    assert.equal(outcome.digest, expected.digest);
    assert.equal((await readVersion(v1)).server?.sampling, 'apart');
  });
});
