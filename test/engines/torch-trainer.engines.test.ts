/** PyTorch's trainer beyond the contract: other models, other numbers of ranks, and the deaths of ranks. */
import assert from 'node:assert/strict';
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after, describe, test, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { LossSettings } from '../../config/run-spec.ts';
import { batchOf, type TrainSample } from '../../core/rl/learning/batch.ts';
import type { StepPlan } from '../../core/rl/run-state.ts';
import { OnnxTrainer } from '../../backends/trainer/onnx.ts';
import {
  engineLogprobs,
  farthest,
  gradientSteps,
  lossOf,
  nearPolicy,
  planOf,
  rowsOf,
  temporaryFolder,
  updateDifference,
  writePreset,
} from '../../backends/testing/material.ts';
import { TorchTrainer } from '../../backends/trainer/torch.ts';
import { packFolder, unpackFolder } from '../../backends/torch/packed-folder.ts';
import { loadParameters, parseModelConfig, saveModelFolder } from '../../engine/index.ts';
import { goldenFolder, goldenNames, readConfig } from '../engine/golden/read-golden.ts';
import { preset, randomBatch } from '../engine/models.ts';
import { untilGone } from './started-torch-worker.ts';
import { ensureTorch } from './torch-cpu.ts';

const found = await ensureTorch();
const skip = 'missing' in found ? `no PyTorch here: ${found.missing}` : false;
const python = 'python' in found ? found.python : '';
const allWeights = { lora: null, seed: 1 };
const plan = planOf({ loss: lossOf('grpo') });

function trainerFor(t: TestContext, ranks: number): TorchTrainer {
  const trainer = new TorchTrainer({ python, ranks, threads: 1 });
  t.after(() => trainer.close());
  return trainer;
}

describe('PyTorch computes the log probabilities of the embedded engine', { skip }, () => {
  const trainer = new TorchTrainer({ python, ranks: 1, threads: 1 });
  after(() => trainer.close());
  for (const name of goldenNames) {
    test(name, async (t) => {
      const folder = await temporaryFolder(t);
      const config = await readConfig(name);
      const parameters = await loadParameters(goldenFolder(name));
      await saveModelFolder({ files: { ...preset().files, 'config.json': config }, parameters }, folder);
      await trainer.open(folder, allWeights);
      const rows = randomBatch(parseModelConfig(config, name), 6, 3);
      const [own, engine] = [await trainer.logprobs(rows, 0.8), await engineLogprobs(folder, rows, 0.8)];
      const off = farthest(rows, own, engine);
      assert.ok(off <= 1e-4, `they are ${off} apart`);
    });
  }
});

describe('PyTorch’s trainer', { skip }, () => {
  test('goes on on one rank and on four from a state that two ranks saved', async (t) => {
    const root = await temporaryFolder(t);
    const model = await writePreset(path.join(root, 'step_0'));
    const batch = batchOf(await rowsOf(model));
    const two = trainerFor(t, 2);
    await two.open(model, allWeights);
    await two.trainStep({ plan, batch, referenceFolder: model });
    const folder = path.join(root, 'step_1');
    await mkdir(folder);
    await two.exportTo(folder, { base: '' });
    const state = await two.saveOptimizer();
    const second = { plan: { ...plan, step: 2 }, batch, referenceFolder: model };
    await two.trainStep(second);
    const rows = await rowsOf(model);
    const undisturbed = await two.logprobs(rows, 1);
    await two.close();
    for (const ranks of [1, 4]) {
      const trainer = trainerFor(t, ranks);
      await trainer.open(folder, allWeights);
      await trainer.restoreOptimizer(state);
      await trainer.trainStep(second);
      const off = farthest(rows, await trainer.logprobs(rows, 1), undisturbed);
      assert.ok(off <= 1e-4, `on ${ranks} ranks log probabilities are ${off} off`);
      await trainer.close();
    }
  });

  test('refuses a state of which one bit has changed, and one of which a file is missing', async (t) => {
    const root = await temporaryFolder(t);
    const model = await writePreset(path.join(root, 'step_0'));
    const trainer = trainerFor(t, 1);
    await trainer.open(model, allWeights);
    await trainer.trainStep({ plan, batch: batchOf(await rowsOf(model)), referenceFolder: model });
    const before = await trainer.digest();
    const state = await trainer.saveOptimizer();
    const unpacked = path.join(root, 'state');
    await mkdir(unpacked);
    await unpackFolder(state, unpacked);
    const [shard] = (await readdir(unpacked)).filter((name) => name.endsWith('.distcp'));
    const bytes = await readFile(path.join(unpacked, shard!));
    bytes[bytes.length >> 1]! ^= 1;
    await writeFile(path.join(unpacked, shard!), bytes);
    await assert.rejects(trainer.restoreOptimizer(await packFolder(unpacked)), { code: 'CheckpointDamaged' });
    await rm(path.join(unpacked, shard!));
    await assert.rejects(trainer.restoreOptimizer(await packFolder(unpacked)), { code: 'CheckpointDamaged' });
    assert.equal(await trainer.digest(), before, 'what was refused changed nothing');
  });

  test('teaches what the embedded engine teaches by losses that the contract does not try, and tells the same figures', async (t) => {
    const root = await temporaryFolder(t);
    const model = await writePreset(path.join(root, 'step_0'));
    const own = fileURLToPath(new URL('../../configs/rl/custom-loss/my-loss.ts', import.meta.url));
    const plain = nearPolicy(await rowsOf(model), await engineLogprobs(model, await rowsOf(model), 0.8));
    const taught = plain.map((row) => ({ ...row, teacherLogprobs: row.lossMask.map((mask) => -2.5 * mask) }));
    const drawn = plain.map((row, r) => ({
      ...row,
      samplingLogprobs: row.behaviorLogprobs.map((logprob) => 0.7 * logprob),
      temperature: r % 2 === 0 ? 0.8 : 1.1,
      rollout: { index: r >> 1, of: 8 },
    }));
    // Prompts are learned as well, and every third row from the teacher alone.
    const several = taught.map((row, r) => ({
      ...row,
      observed: [{ from: 1, to: 3, weight: 0.3 }],
      ...(r % 3 === 0 ? { objective: 'ref_kl' as const } : {}),
    }));
    const cispo = lossOf('cispo');
    const cases: { what: string; rows: readonly TrainSample[]; given: Partial<StepPlan> & { loss: LossSettings } }[] = [
      {
        what: 'a file of one’s own',
        rows: plain,
        given: { loss: { ...cispo, type: 'custom', import: { path: own, sha256: null } } },
      },
      { what: 'a teacher', rows: taught, given: { loss: { ...cispo, advantageTau: 0.5, teacherTau: 0.7 } } },
      {
        what: 'rows of several temperatures, drawn from another distribution',
        rows: drawn,
        given: { loss: lossOf('gspo', 'sequence') },
      },
      { what: 'bounds and a cap', rows: plain, given: { loss: { ...lossOf('grpo'), ratioMax: 1.5 } } },
      { what: 'a bonus for entropy', rows: plain, given: { loss: { ...cispo, entropyCoef: 0.3 } } },
      {
        what: 'several losses',
        rows: several,
        given: { loss: cispo, distillation: { ...lossOf('ipo'), teacherTau: 1, advantageTau: 0 } },
      },
    ];
    const torch = trainerFor(t, 2);
    const engine = new OnnxTrainer({ threads: 1 });
    t.after(() => engine.close());
    for (const [i, { what, rows, given }] of cases.entries()) {
      const exports: string[] = [];
      const metrics: Readonly<Record<string, number>>[] = [];
      for (const trainer of [engine, torch]) {
        await trainer.open(model, allWeights);
        const step = { ...given, learningRate: 1, optimizer: gradientSteps, temperature: 0.8 };
        const outcome = await trainer.trainStep({ plan: planOf(step), batch: batchOf(rows), referenceFolder: model });
        assert.equal(outcome.applied, true, `${what}: ${outcome.reason}`);
        metrics.push(outcome.metrics);
        exports.push(path.join(root, `version_${i}_${exports.length}`));
        await mkdir(exports.at(-1)!);
        await trainer.exportTo(exports.at(-1)!, { base: '' });
      }
      const off = await updateDifference(model, exports[0]!, exports[1]!);
      assert.ok(off <= 1e-4, `${what}: the updates are ${off} of their length apart`);
      const { kl_divergence: _, ...expected } = metrics[0]!; // only reported, of which PyTorch has none without adapters
      for (const [name, value] of Object.entries(expected)) {
        const told = metrics[1]![name] ?? Number.NaN;
        assert.ok(
          Math.abs(told - value) <= 1e-3 * Math.max(1, Math.abs(value)),
          `${what}: ${name} is ${told}, not ${value}`,
        );
      }
    }
  });

  test('computes in bfloat16 with weights in float32, which come back with the optimizer’s state', async (t) => {
    const root = await temporaryFolder(t);
    const model = await writePreset(path.join(root, 'step_0'));
    const batch = batchOf(await rowsOf(model));
    const lora = { r: 4, alpha: 8, dropout: 0.1, targetModules: ['q_proj', 'v_proj'] };
    for (const part of [allWeights, { lora, seed: 3 }]) {
      const kind = part.lora ? 'adapter' : 'weights';
      const options = { python, ranks: 1, threads: 1, dtype: 'bfloat16', ac_freq: 1 };
      const [first, second] = [new TorchTrainer(options), new TorchTrainer(options)];
      t.after(() => Promise.all([first.close(), second.close()]));
      // A rate at which most steps are lost in the rounding of bfloat16.
      const step = (number: number) => ({
        plan: { ...plan, step: number, learningRate: 1e-4, dropoutSeed: number },
        batch,
        referenceFolder: model,
      });
      await first.open(model, part);
      assert.equal((await first.trainStep(step(1))).applied, true);
      const folder = path.join(root, `${kind}_1`);
      await mkdir(folder);
      await first.exportTo(folder, { base: '../step_0' });
      const state = await first.saveOptimizer();
      const onward = await first.trainStep(step(2));
      await second.open(folder, part);
      await second.restoreOptimizer(state);
      assert.equal((await second.trainStep(step(2))).digest, onward.digest, kind);
      const [file] = (await readdir(folder)).filter((name) => name.endsWith('.safetensors'));
      const header = (await readFile(path.join(folder, file!))).subarray(0, 400).toString('latin1');
      assert.match(header, part.lora ? /"dtype":"F32"/ : /"dtype":"BF16"/);
      await first.close();
      await second.close();
    }
  });

  test('says which rank died, leaves none behind, and opens again', async (t) => {
    const root = await temporaryFolder(t);
    const model = await writePreset(path.join(root, 'step_0'));
    const batch = batchOf(await rowsOf(model));
    const trainer = trainerFor(t, 2);
    const { digest } = await trainer.open(model, allWeights);
    const pids = await trainer.pids();
    assert.equal(pids.length, 2);
    process.kill(pids[1]!, 'SIGKILL');
    await assert.rejects(trainer.trainStep({ plan, batch, referenceFolder: model }), {
      code: 'EngineDied',
      message: /^Rank 1 of 2 was killed by signal 9/,
    });
    for (const pid of pids) await untilGone(pid);
    assert.equal((await trainer.open(model, allWeights)).digest, digest);
    assert.equal((await trainer.trainStep({ plan, batch, referenceFolder: model })).applied, true);
  });
});
