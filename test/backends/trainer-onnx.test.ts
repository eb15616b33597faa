import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { openInference } from '../../backends/inference/index.ts';
import type { ServedPolicy, StepPlan } from '../../core/rl/run-state.ts';
import { OnnxTrainer } from '../../backends/trainer/onnx.ts';
import { InferenceSpec } from '../../config/run-spec.ts';
import { createPreset, EngineOptimizer, saveModelFolder, startPolicyServer } from '../../engine/index.ts';
import { assembleModel } from '../../engine/model/model-folder.ts';
import type { Trainer } from '../../backends/trainer/types.ts';
import { optimizer, randomBatch } from '../engine/models.ts';
import { batchOf } from '../../core/rl/learning/batch.ts';

const version = {
  step: 0,
  digest: '',
  weights: '',
  file: { key: '', sha256: '', bytes: 0 },
  sums: { key: '', sha256: '', bytes: 0 },
};

const plan: StepPlan = {
  lineage: 'main',
  step: 1,
  attempt: 1,
  from: version,
  reference: version,
  packed: version.file,
  learningRate: 1e-2,
  temperature: 0.8,
  klBeta: 0.05,
  loss: { type: 'grpo', clipLow: 0.8, clipHigh: 1.2, aggregation: 'sequence' },
  optimizer,
  numIterations: 2,
  microBatchSize: 5,
  dropoutSeed: 11,
  snapshot: false,
};

const lora = { r: 4, alpha: 8, dropout: 0.1, targetModules: ['q_proj', 'k_proj', 'v_proj', 'o_proj'] };

test('a policy with adapters is trained, exported beside its base, and served to the digit', async (t) => {
  const weights = await mkdtemp(join(tmpdir(), 'ratchet-lora-'));
  t.after(() => rm(weights, { recursive: true, force: true }));
  const [base, exported] = [join(weights, 'step_0'), join(weights, 'step_1')];
  const model = createPreset('preset:reverse-text-0.2m', { seed: 1 });
  await saveModelFolder(model, base);
  await mkdir(exported);

  const trainer = new OnnxTrainer({ threads: 1, provider: 'cpu' });
  t.after(() => trainer.close());
  const part = { lora, seed: 3 };
  assert.equal((await trainer.open(base, part)).digest, model.parameters.digest());
  const rows = randomBatch(model.config, 16, 4);
  const batch = batchOf(rows);
  const outcome = await trainer.trainStep({ plan, batch, referenceFolder: base });
  assert.ok(outcome.applied && outcome.metrics['kl_divergence']! >= 0);
  // the trainer's current values, for the canary
  const canary = rows.slice(0, 2);
  const positions = canary[0]!.lossMask.flatMap((mask, i) => (mask > 0 && i > 0 ? [i] : [])).slice(0, 3);
  assert.equal(positions.length, 3);
  const expected = await trainer.logprobs(canary, 1);
  await trainer.exportTo(exported, { base: '../step_0' });
  const state = await trainer.saveOptimizer();

  // The same step from the same place gives the same bits, masks of dropout included.
  assert.equal((await trainer.open(base, part)).digest, model.parameters.digest());
  assert.equal((await trainer.trainStep({ plan, batch, referenceFolder: base })).digest, outcome.digest);
  assert.deepEqual(await trainer.saveOptimizer(), state);
  // A warm-up trains all weights, in between.
  assert.equal((await trainer.open(base, { lora: null, seed: 3 })).digest, model.parameters.digest());
  await assert.rejects(trainer.open(exported, { lora: null, seed: 3 }), { code: 'ModelUnsupported' });
  assert.equal((await trainer.open(exported, part)).digest, outcome.digest);

  const server = await startPolicyServer({ key: null, host: '127.0.0.1', port: 0, allowRoots: [weights], threads: 1 });
  t.after(() => server.close());
  const policy: ServedPolicy = {
    name: 'lora:main:1',
    folder: exported,
    version: { ...version, step: 1, digest: outcome.digest },
  };
  const inference = openInference(InferenceSpec.parse({ kind: 'embedded', url: server.url }), '');
  await inference.bringTo(policy);
  const { tokenIds } = canary[0]!;
  const told = await inference.score!({ policy, tokenIds, positions });
  told!.forEach((logprob, i) =>
    assert.ok(Math.abs(logprob - expected[0]![positions[i]!]!) < 1e-4, 'the canary agrees'),
  );
  const promptTokenIds = model.tokenizer.renderChat([{ role: 'user', content: 'horse' }]);
  const turns = await Promise.all(
    Array.from({ length: 6 }, (_, seed) =>
      inference.sample({ policy, promptTokenIds, maxTokens: 10, temperature: 0.8, topP: 0.9, seed }),
    ),
  );
  const samples = turns.map(({ tokenIds }) => ({
    tokenIds: [...promptTokenIds, ...tokenIds],
    lossMask: [...promptTokenIds.map(() => 0), ...tokenIds.map(() => 1)],
  }));
  const engine = await EngineOptimizer.open(exported, { threads: 1 });
  t.after(() => engine.close());
  const scored = await engine.forwardLogprobs(samples, { temperature: 0.8 });
  turns.forEach(({ logprobs, samplingLogprobs }, row) => {
    const trained = scored[row]!.slice(promptTokenIds.length);
    logprobs!.forEach((logprob, i) => assert.ok(Math.abs(logprob - trained[i]!) < 1e-4));
    // Cut to nine tenths of the mass, what was drawn was likelier than before.
    assert.equal(samplingLogprobs?.length, logprobs!.length);
    samplingLogprobs.forEach((logprob, i) => assert.ok(logprob >= logprobs![i]! - 1e-6));
  });
});

test('a trainer that has trained one model trains any other after it, as one that is fresh does', async (t) => {
  const root = await mkdtemp(join(tmpdir(), 'ratchet-models-'));
  t.after(() => rm(root, { recursive: true, force: true }));
  const small = createPreset('preset:reverse-text-0.2m', { seed: 1 });
  const rotated = {
    ...small.files,
    'config.json': JSON.stringify({ ...JSON.parse(small.files['config.json']!), rope_theta: 5e5 }),
  };
  const models = {
    small,
    other: createPreset('preset:chars-0.4m', { seed: 1 }),
    // Shapes and weights are those of the first one; only its graphs differ.
    rotated: assembleModel(rotated, small.parameters),
  };
  const open = async (): Promise<Trainer> => {
    const trainer = new OnnxTrainer({ threads: 1, provider: 'cpu' });
    t.after(() => trainer.close());
    return trainer;
  };
  const logprobsOf = async (trainer: Trainer, name: keyof typeof models): Promise<readonly Float32Array[]> => {
    await trainer.open(join(root, name), { lora: null, seed: 1 });
    return trainer.logprobs!(randomBatch(models[name].config, 4, 2), 1);
  };
  const used = await open();
  for (const name of ['small', 'other', 'rotated', 'small'] as const) {
    await saveModelFolder(models[name], join(root, name));
    assert.deepEqual(await logprobsOf(used, name), await logprobsOf(await open(), name), name);
  }
});

test('a KL that is only reported is that of an eighth of the rows, of the next ones at each step', async (t) => {
  const base = await mkdtemp(join(tmpdir(), 'ratchet-kl-'));
  t.after(() => rm(base, { recursive: true, force: true }));
  const model = createPreset('preset:reverse-text-0.2m', { seed: 1 });
  await saveModelFolder(model, base);
  const trainer = new OnnxTrainer({ threads: 1, provider: 'cpu' });
  t.after(() => trainer.close());
  await trainer.open(base, { lora: null, seed: 3 });
  const rows = randomBatch(model.config, 72, 4);
  const reference = await trainer.logprobs(rows, 0.8);
  for (const step of [1, 2, 8]) {
    const current = await trainer.logprobs(rows, 0.8);
    const outcome = await trainer.trainStep({
      plan: { ...plan, step, klBeta: 0, numIterations: 1 },
      batch: batchOf(rows),
      referenceFolder: base,
    });
    assert.ok(outcome.applied);
    const differences = rows.flatMap(({ lossMask }, row) =>
      lossMask.flatMap((mask, i) => (mask > 0 ? [{ row, difference: reference[row]![i]! - current[row]![i]! }] : [])),
    );
    // 9 rows of 72: from the tenth on in step 1.
    const first = (step % 8) * 9;
    const told = differences.filter(({ row }) => row >= first && row < first + 9);
    const sum = told.reduce((total, { difference }) => total + Math.exp(difference) - difference - 1, 0);
    assert.ok(Math.abs(outcome.metrics['kl_divergence']! - sum / told.length) < 1e-6, `step ${step}`);
    assert.equal(step === 1, sum === 0, 'before the first step the policy is the reference');
  }
});
