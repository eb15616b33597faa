/** PyTorch's trainer beyond the contract: other models, other numbers of ranks, and the deaths of ranks. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { cp, mkdir, mkdtemp, readdir, readFile, rm, rmdir, stat, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
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
import { loadParameters, parseModelConfig, saveModelFolder } from '../../engine/index.ts';
import { packedAsBefore } from '../backends/packed-state.ts';
import { goldenFolder, goldenNames, readConfig } from '../engine/golden/read-golden.ts';
import { preset, randomBatch } from '../engine/models.ts';
import { untilGone } from './started-trainer-worker.ts';
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
    const state = await two.saveOptimizer(await temporaryFolder(t));
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

  test('goes on on two ranks, in shards, from a state of one rank, which has none', async (t) => {
    const root = await temporaryFolder(t);
    const model = await writePreset(path.join(root, 'step_0'));
    const rows = await rowsOf(model);
    const batch = batchOf(rows);
    const one = trainerFor(t, 1);
    await one.open(model, allWeights);
    await one.trainStep({ plan, batch, referenceFolder: model });
    const folder = path.join(root, 'step_1');
    await mkdir(folder);
    await one.exportTo(folder, { base: '' });
    const state = await one.saveOptimizer(await temporaryFolder(t));
    const second = { plan: { ...plan, step: 2 }, batch, referenceFolder: model };
    await one.trainStep(second);
    const two = trainerFor(t, 2);
    await two.open(folder, allWeights);
    await two.restoreOptimizer(state);
    await two.trainStep(second);
    const off = farthest(rows, await two.logprobs(rows, 1), await one.logprobs(rows, 1));
    assert.ok(off <= 1e-4, `log probabilities are ${off} off`);
  });

  test('refuses weights that are cut off, and its ranks live on', async (t) => {
    const root = await temporaryFolder(t);
    const model = await writePreset(path.join(root, 'whole'));
    const damaged = await writePreset(path.join(root, 'damaged'));
    const weights = path.join(damaged, 'model.safetensors');
    await truncate(weights, (await stat(weights)).size - 100);
    const trainer = trainerFor(t, 1);
    await trainer.open(model, allWeights);
    const before = [await trainer.digest(), await trainer.pids()];
    await assert.rejects(trainer.open(damaged, allWeights), (error: Error & { code: string }) => {
      assert.equal(error.code, 'ModelUnsupported');
      assert.ok(error.message.startsWith(`${damaged} cannot be opened by transformers `), error.message);
      return true;
    });
    await trainer.open(model, allWeights);
    assert.deepEqual([await trainer.digest(), await trainer.pids()], before);
  });

  test('refuses a state with a changed bit, a file too few or no list by the name of the file, and reads the packed form', async (t) => {
    const root = await temporaryFolder(t);
    const model = await writePreset(path.join(root, 'step_0'));
    const trainer = trainerFor(t, 2);
    await trainer.open(model, allWeights);
    await trainer.trainStep({ plan, batch: batchOf(await rowsOf(model)), referenceFolder: model });
    const before = await trainer.digest();
    const state = path.join(root, 'state');
    await mkdir(state);
    assert.deepEqual(await trainer.saveOptimizer(state), { folder: state });
    const shards = (await readdir(state)).filter((name) => name.endsWith('.distcp'));
    assert.equal(shards.length, 2, 'one of each rank');
    const damages: readonly (readonly [string, (file: string) => Promise<void>])[] = [
      [shards[1]!, changeBit],
      ['.metadata', changeBit],
      [shards[0]!, (file) => rm(file)],
      ['optimizer.json', (file) => rm(file)],
    ];
    for (const [i, [name, damage]] of damages.entries()) {
      const copy = path.join(root, `damaged_${i}`);
      await cp(state, copy, { recursive: true });
      await damage(path.join(copy, name));
      await assert.rejects(trainer.restoreOptimizer({ folder: copy }), (error: Error & { code: string }) => {
        assert.equal(error.code, 'CheckpointDamaged');
        assert.ok(error.message.includes(name), error.message);
        return true;
      });
    }
    assert.equal(await trainer.digest(), before, 'what was refused changed nothing');

    const listed = path.join(root, 'listed');
    await cp(state, listed, { recursive: true });
    const own = path.join(listed, 'optimizer.json');
    await writeFile(own, (await readFile(own, 'utf8')).replace(/"sha256": "[0-9a-f]{8}/, '"sha256": "00000000'));
    await assert.rejects(trainer.restoreOptimizer({ folder: listed }), { code: 'CheckpointDamaged' });
    await trainer.restoreOptimizer({ folder: listed, isVerified: true }); // nothing is hashed a second time

    const older = path.join(root, 'older');
    await cp(state, older, { recursive: true });
    const list = JSON.parse(await readFile(path.join(older, 'optimizer.json'), 'utf8')) as Record<string, unknown>;
    const { schemaVersion: version, ...described } = list;
    await writeFile(path.join(older, 'manifest.json'), JSON.stringify({ version, ...described }));
    await rm(path.join(older, 'optimizer.json'));
    await trainer.restoreOptimizer(await packedAsBefore(older));
    const again = await temporaryFolder(t);
    await trainer.saveOptimizer(again);
    for (const name of shards)
      assert.deepEqual(await readFile(path.join(again, name)), await readFile(path.join(state, name)));
  });

  test('on a full disk says so in a sentence, goes on where there is room, and takes nothing half-written for whole', async (t) => {
    const small = await mkdtemp(path.join(tmpdir(), 'ratchet-small-'));
    try {
      execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=400k,mode=700', 'tmpfs', small], { stdio: 'pipe' });
    } catch {
      await rmdir(small);
      return t.skip('a small disk is a tmpfs here, and to mount one needs Linux and root');
    }
    t.after(async () => {
      execFileSync('umount', ['-l', small]);
      await rmdir(small);
    });
    const root = await temporaryFolder(t);
    const model = await writePreset(path.join(root, 'step_0'));
    const trainer = new TorchTrainer({ python, ranks: 2, threads: 1, shard_size: '100KB' }); // full behind the first file
    t.after(() => trainer.close());
    await trainer.open(model, allWeights);
    const { digest } = await trainer.trainStep({ plan, batch: batchOf(await rowsOf(model)), referenceFolder: model });
    const full = {
      code: 'StoreFull',
      message: /^No space left to write \S+ratchet-small-.*; the run continues by itself\.$/,
    };
    const [version, state] = [path.join(small, 'version'), path.join(small, 'state')];
    await mkdir(version);
    await assert.rejects(trainer.exportTo(version, { base: '' }), full);
    assert.ok(!(await readdir(version)).some((name) => name.endsWith('.safetensors')), 'weights come last');
    await rm(version, { recursive: true });
    await mkdir(state);
    await assert.rejects(trainer.saveOptimizer(state), full);
    await assert.rejects(trainer.restoreOptimizer({ folder: state }), {
      code: 'CheckpointDamaged',
      message: /optimizer\.json cannot be read/,
    });
    assert.equal(await trainer.digest(), digest);
    const room = path.join(root, 'room');
    await mkdir(room);
    await trainer.restoreOptimizer(await trainer.saveOptimizer(room));
  });

  test('exports a version in several files with an index, which it and the embedded engine open', async (t) => {
    const root = await temporaryFolder(t);
    const model = await writePreset(path.join(root, 'step_0'));
    const trainer = new TorchTrainer({ python, ranks: 2, threads: 1, shard_size: '100KB' });
    t.after(() => trainer.close());
    await trainer.open(model, allWeights);
    const batch = batchOf(await rowsOf(model));
    const { digest } = await trainer.trainStep({ plan, batch, referenceFolder: model });
    const [one, folder] = [path.join(root, 'one'), path.join(root, 'several')];
    for (const each of [one, folder]) await mkdir(each);
    await trainer.exportTo(folder, { base: '' });
    const names = await readdir(folder);
    assert.ok(names.filter((name) => name.endsWith('.safetensors')).length > 2, names.join());
    assert.ok(names.includes('model.safetensors.index.json'), names.join());
    const rows = await rowsOf(model);
    const [own, engine] = [await trainer.logprobs(rows, 1), await engineLogprobs(folder, rows, 1)];
    assert.ok(farthest(rows, own, engine) <= 1e-4);
    const second = trainerFor(t, 1);
    assert.equal((await second.open(folder, allWeights)).digest, digest);
    await second.exportTo(one, { base: '' });
    assert.equal(await updateDifference(model, folder, one), 0);
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
      const state = await first.saveOptimizer(await temporaryFolder(t));
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

async function changeBit(file: string): Promise<void> {
  const bytes = await readFile(file);
  bytes[bytes.length >> 1]! ^= 1;
  await writeFile(file, bytes);
}
