/** Settings that PyTorch’s trainer honours: mixtures of experts, optimizers, precision, kernels, memory. */
import assert from 'node:assert/strict';
import { chmod, mkdir, mkdtemp, readdir, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { loraModules } from '../../config/settings/optimizer.ts';
import { batchOf } from '../../core/rl/learning/batch.ts';
import {
  farthest,
  lossOf,
  planOf,
  rowsOf,
  temporaryFolder,
  updateDifference,
  writePreset,
} from '../../backends/testing/material.ts';
import { OnnxTrainer } from '../../backends/trainer/onnx.ts';
import { TorchTrainer } from '../../backends/trainer/torch.ts';
import type { RankOptions } from '../../backends/torch/protocol.ts';
import { decodeSafetensors, loadParameters, parseModelConfig, saveModelFolder } from '../../engine/index.ts';
import { goldenFolder, readConfig } from '../engine/golden/read-golden.ts';
import { preset, randomBatch } from '../engine/models.ts';
import { ensureTorch } from './torch-cpu.ts';

const found = await ensureTorch();
const skip = 'missing' in found ? `no PyTorch here: ${found.missing}` : false;
const python = 'python' in found ? found.python : '';
const allWeights = { lora: null, seed: 1 };
const everyLayer = { r: 2, alpha: 4, dropout: 0, targetModules: [...loraModules] };
const plan = planOf({ loss: lossOf('grpo') });

function trainerWith(t: TestContext, options: Partial<RankOptions> = {}, said: string[] = []): TorchTrainer {
  const trainer = new TorchTrainer({ python, ranks: 1, threads: 1, ...options }, { say: (line) => said.push(line) });
  t.after(() => trainer.close());
  return trainer;
}

/** A Python whose only rank keeps its weights whole, as it does on a Mac, which is not at hand. */
async function withoutShards(folder: string): Promise<string> {
  const program = path.join(folder, 'without_shards.py');
  await writeFile(
    program,
    `import sys
from ratchet_torch import launcher, ranks
begin = ranks.Ranks.__init__
def begin_alone(self, *given):
    begin(self, *given)
    self.shares = False
ranks.Ranks.__init__ = begin_alone
sys.exit(launcher.main(sys.argv[1:]))
`,
  );
  const file = path.join(folder, 'python');
  // The trainer starts it as `python -P -m ratchet_torch SOCKET`.
  await writeFile(file, `#!/bin/sh\nfor last; do :; done\nexec '${python}' -P '${program}' "$last"\n`);
  await chmod(file, 0o755);
  return file;
}

async function exported(trainer: TorchTrainer, folder: string): Promise<string> {
  await mkdir(folder);
  await trainer.exportTo(folder, { base: '../model' });
  return folder;
}

async function tensorsIn(folder: string) {
  const names = (await readdir(folder)).filter((name) => name.endsWith('.safetensors'));
  const files = await Promise.all(names.map((name) => readFile(path.join(folder, name))));
  return new Map(files.flatMap((bytes) => [...decodeSafetensors(bytes, folder).tensors]));
}

describe('PyTorch trains a mixture of experts', { skip }, () => {
  async function writeExperts(t: TestContext): Promise<{ root: string; model: string }> {
    const root = await temporaryFolder(t);
    const model = path.join(root, 'model');
    const parameters = await loadParameters(goldenFolder('qwen3-moe'));
    await saveModelFolder(
      { files: { ...preset().files, 'config.json': await readConfig('qwen3-moe') }, parameters },
      model,
    );
    return { root, model };
  }

  test('by adapters on its experts, and none on a router: on one rank and on two, from an exported version too', async (t) => {
    const { root, model } = await writeExperts(t);
    const rows = randomBatch(parseModelConfig(await readConfig('qwen3-moe'), model), 6, 3);
    const scores = [];
    for (const ranks of [1, 2]) {
      const trainer = trainerWith(t, { ranks, ac_freq: 1 });
      await trainer.open(model, { lora: everyLayer, seed: 3 });
      const { applied, digest, reason } = await trainer.trainStep({
        plan,
        batch: batchOf(rows),
        referenceFolder: model,
      });
      assert.equal(applied, true, reason);
      scores.push(await trainer.logprobs(rows, 1));
      const folder = await exported(trainer, path.join(root, `on_${ranks}`));
      const names = [...(await tensorsIn(folder)).keys()];
      assert.ok(
        names.some((name) => name.includes('.experts.')),
        names.join(),
      );
      assert.ok(!names.some((name) => /\.gate\.|router/.test(name)), names.join());
      assert.equal((await trainer.open(folder, { lora: everyLayer, seed: 9 })).digest, digest);
      await trainer.close();
    }
    const off = farthest(rows, scores[0]!, scores[1]!);
    assert.ok(off <= 1e-4, `on two ranks log probabilities are ${off} off`);
  });

  test('with routers that move, or stay where freeze_moe_router says so', async (t) => {
    const { root, model } = await writeExperts(t);
    const rows = randomBatch(parseModelConfig(await readConfig('qwen3-moe'), model), 6, 3);
    const before = await tensorsIn(model);
    for (const freeze_moe_router of [false, true]) {
      const trainer = trainerWith(t, { freeze_moe_router });
      await trainer.open(model, allWeights);
      await trainer.trainStep({ plan, batch: batchOf(rows), referenceFolder: model });
      const after = await tensorsIn(await exported(trainer, path.join(root, `frozen_${freeze_moe_router}`)));
      const moved = [...before].filter(([name, { data }]) => !sameNumbers(data, after.get(name)!.data));
      const names = moved.map(([name]) => name);
      assert.equal(
        names.some((name) => name.endsWith('mlp.gate.weight')),
        !freeze_moe_router,
      );
      assert.ok(
        names.some((name) => name.includes('.experts.')),
        'experts are trained',
      );
      await trainer.close();
    }
  });
});

describe('PyTorch’s trainer honours', { skip }, () => {
  async function opened(t: TestContext) {
    const root = await temporaryFolder(t);
    const model = await writePreset(path.join(root, 'model'));
    return { root, model, rows: await rowsOf(model) };
  }

  test('muon, with the steps of the embedded engine: on one rank and on two, and from a saved state', async (t) => {
    const { root, model, rows } = await opened(t);
    const optimizer = { ...plan.optimizer, type: 'muon' as const };
    const step = (number: number) => ({
      plan: { ...plan, optimizer, step: number },
      batch: batchOf(rows),
      referenceFolder: model,
    });
    const engine = new OnnxTrainer({ threads: 1 });
    t.after(() => engine.close());
    await engine.open(model, allWeights);
    for (const number of [1, 2]) await engine.trainStep(step(number));
    const expected = path.join(root, 'expected');
    await mkdir(expected);
    await engine.exportTo(expected, { base: '' });
    for (const ranks of [1, 2]) {
      const trainer = trainerWith(t, { ranks });
      await trainer.open(model, allWeights);
      await trainer.trainStep(step(1));
      const first = await exported(trainer, path.join(root, `first_${ranks}`));
      const state = await trainer.saveOptimizer(await temporaryFolder(t));
      const { digest } = await trainer.trainStep(step(2));
      const folder = await exported(trainer, path.join(root, `second_${ranks}`));
      const off = await updateDifference(model, expected, folder);
      // Every product is rounded to bfloat16: which way depends on the order of a sum, and five rounds of products multiply that.
      assert.ok(off <= 0.1, `on ${ranks} ranks the update is ${off} of its length apart`);
      await trainer.open(first, allWeights);
      await trainer.restoreOptimizer(state);
      assert.equal((await trainer.trainStep(step(2))).digest, digest);
      await trainer.close();
    }
  });

  test('modules that are trained whole beside adapters, which a version has', async (t) => {
    const root = await temporaryFolder(t);
    const model = path.join(root, 'model');
    const config = await readConfig('llama-plain');
    const parameters = await loadParameters(goldenFolder('llama-plain'));
    await saveModelFolder({ files: { ...preset().files, 'config.json': config }, parameters }, model);
    const rows = randomBatch(parseModelConfig(config, model), 6, 3);
    const lora = { ...everyLayer, targetModules: ['q_proj'], modulesToSave: ['lm_head'] };
    for (const ranks of [1, 2]) {
      const trainer = trainerWith(t, { ranks });
      await trainer.open(model, { lora, seed: 3 });
      const untrained = await trainer.logprobs(rows, 1);
      const { digest } = await trainer.trainStep({ plan, batch: batchOf(rows), referenceFolder: model });
      const trained = await trainer.logprobs(rows, 1);
      assert.ok(farthest(rows, untrained, trained) > 1e-3);
      const folder = await exported(trainer, path.join(root, `on_${ranks}`));
      assert.ok([...(await tensorsIn(folder)).keys()].some((name) => name.includes('lm_head')));
      assert.equal((await trainer.open(folder, { lora, seed: 9 })).digest, digest);
      assert.ok(farthest(rows, await trainer.logprobs(rows, 1), trained) <= 1e-6);
      await trainer.close();
    }
  });

  test('offloaded moments and weights, which change no number', async (t) => {
    const { model, rows } = await opened(t);
    const digests = [];
    for (const options of [{}, { optim_cpu_offload: true, fsdp_cpu_offload: true }]) {
      const trainer = trainerWith(t, options);
      await trainer.open(model, allWeights);
      for (const step of [1, 2])
        await trainer.trainStep({ plan: { ...plan, step }, batch: batchOf(rows), referenceFolder: model });
      digests.push(await trainer.digest());
      await trainer.close();
    }
    assert.equal(digests[1], digests[0]);
  });

  test('the distance to the reference is that of the policy before the step, in one pass and in several', async (t) => {
    const { model, rows } = await opened(t);
    for (const [lora, numMiniBatches] of [
      [null, 1],
      [everyLayer, 1],
      [{ ...everyLayer, dropout: 0.1 }, 1],
      [everyLayer, 2],
    ] as const) {
      // prettier-ignore
      const trainer = trainerWith(t, { ranks: 2 });
      await trainer.open(model, { lora, seed: 1 });
      const few = rows.slice(0, 6); // fewer than it would leave out
      const reference = await trainer.logprobs(few, 1);
      const step = { batch: batchOf(few), referenceFolder: model };
      await trainer.trainStep({ ...step, plan: { ...plan, learningRate: 1e-2 } });
      const current = await trainer.logprobs(few, 1);
      const { metrics } = await trainer.trainStep({ ...step, plan: { ...plan, numMiniBatches } });
      const k3 = few.flatMap(({ lossMask }, r) =>
        [...lossMask].flatMap((mask, i) => {
          const difference = reference[r]![i]! - current[r]![i]!;
          return mask === 0 ? [] : [Math.exp(difference) - difference - 1];
        }),
      );
      const mean = k3.reduce((sum, one) => sum + one, 0) / k3.length;
      assert.ok(mean > 0 && Math.abs(metrics['kl_divergence']! - mean) < 1e-4 * mean + 1e-8, `${metrics['kl_divergence']} and ${mean}`); // prettier-ignore
      await trainer.close();
    }
  });

  test('the attention that was chosen is in the fingerprint, not the wish', async (t) => {
    const trainer = trainerWith(t, { attn: 'auto' });
    assert.match(await trainer.fingerprint(), /, attention sdpa/);
  });

  test('one rank that shares its weights with none, as on a Mac’s GPU, gives the same bits', async (t) => {
    const { root, model, rows } = await opened(t);
    const trainer = trainerWith(t);
    const alone = new TorchTrainer({ python: await withoutShards(root), ranks: 1, threads: 1 });
    t.after(() => alone.close());
    for (const trained of [allWeights, { lora: everyLayer, seed: 1 }]) {
      const digests = [];
      for (const one of [trainer, alone]) {
        await one.open(model, trained);
        await one.trainStep({ plan, batch: batchOf(rows), referenceFolder: model });
        const state = await mkdtemp(path.join(root, 'state-'));
        await one.restoreOptimizer(await one.saveOptimizer(state));
        digests.push((await one.trainStep({ plan, batch: batchOf(rows), referenceFolder: model })).digest);
      }
      assert.equal(digests[0], digests[1]);
    }
  });

  test('the precision of held weights and of sums over ranks', async (t) => {
    const { root, model, rows } = await opened(t);
    const trainer = trainerWith(t, {
      ranks: 2,
      dtype: 'bfloat16',
      optimization_dtype: 'bfloat16',
      reduce_dtype: 'bfloat16',
    });
    await trainer.open(model, allWeights);
    assert.equal((await trainer.trainStep({ plan, batch: batchOf(rows), referenceFolder: model })).applied, true);
    assert.match(await trainer.fingerprint(), /optimization_dtype bfloat16, reduce_dtype bfloat16/);
    const { digest } = await trainer.open(await exported(trainer, path.join(root, 'version')), allWeights);
    assert.notEqual(digest, null);
  });

  test('attention by name: refuses a kernel that is not there, and says that Liger’s are not', async (t) => {
    const { model } = await opened(t);
    await assert.rejects(trainerWith(t, { attn: 'flash_attention_3' }).open(model, allWeights), {
      code: 'Unsupported',
      message: /^trainer\.attn is "flash_attention_3", which .* lacks\. Install it there, or leave trainer\.attn out/,
    });
    const said: string[] = [];
    await trainerWith(t, { attn: 'eager', use_liger: true }, said).open(model, allWeights);
    assert.deepEqual(said, ['trainer.use_liger has no effect: the CPU has none']);
  });

  test('compiled layers, which give the same log probabilities', async (t) => {
    const { model, rows } = await opened(t);
    const scores = [];
    for (const compile of [false, true]) {
      const trainer = trainerWith(t, { compile });
      await trainer.open(model, allWeights);
      await trainer.trainStep({ plan, batch: batchOf(rows), referenceFolder: model });
      scores.push(await trainer.logprobs(rows, 1));
      await trainer.close();
    }
    const off = farthest(rows, scores[0]!, scores[1]!);
    assert.ok(off <= 1e-4, `they are ${off} apart`);
  });

  test('a base of 4 bits under adapters, or names the package that is missing', async (t) => {
    const { root, model, rows } = await opened(t);
    const trainer = trainerWith(t, { load_in_4bit: true, ranks: 2 });
    const part = { lora: everyLayer, seed: 3 };
    try {
      await trainer.open(model, part);
    } catch (error) {
      assert.match((error as Error).message, /load_in_4bit needs the package bitsandbytes/);
      return;
    }
    const { digest, applied } = await trainer.trainStep({ plan, batch: batchOf(rows), referenceFolder: model });
    assert.equal(applied, true);
    const folder = await exported(trainer, path.join(root, 'version'));
    assert.equal((await trainer.open(folder, part)).digest, digest);
  });
});

function sameNumbers(a: ArrayLike<number | bigint>, b: ArrayLike<number | bigint>): boolean {
  return a.length === b.length && Array.prototype.every.call(a, (value, i) => value === b[i]);
}
