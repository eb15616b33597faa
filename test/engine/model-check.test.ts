import assert from 'node:assert/strict';
import { cp, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { checkModel } from '../../load/checks/check-model.ts';
import { EngineOptimizer } from '../../engine/index.ts';
import { goldenFolder, readConfig } from './golden/read-golden.ts';
import { temporaryFolder } from './models.ts';

const run = { model: 'preset:reverse-text-0.2m', lora: null, sft: null };
const lora = { r: 4, alpha: 8, dropout: 0, targetModules: ['q_proj'] };

test('a run may train a preset or a folder of any family, whole or by adapters', async () => {
  await checkModel(run);
  await checkModel({ ...run, lora });
  await checkModel({ model: goldenFolder('llama3-scaled'), lora, sft: null });
});

test('a run is refused for its model before any weight is read', async (t) => {
  const folder = await temporaryFolder(t);
  const ask = (change: object): Promise<unknown> => checkModel({ ...run, model: folder, ...change });
  const refuses = (change: object, message: RegExp): Promise<void> =>
    assert.rejects(ask(change), { code: 'ModelUnsupported', message });
  await refuses({}, /has no config.json.*ratchet-rl model get/s);
  const config = JSON.parse(await readConfig('qwen3-tied')) as object;
  const write = (change: object): Promise<void> =>
    writeFile(join(folder, 'config.json'), JSON.stringify({ ...config, ...change }));
  await write({});
  await refuses({ lora: { ...lora, targetModules: ['lm_head'] } }, /without the embedding and the output layer/);
  await write({ hidden_size: 8192, num_hidden_layers: 10_000 });
  await refuses(
    {},
    /billion parameters.*GPU engine, e.g. Tinker\/SkyRL or prime-rl for training and vLLM for sampling/,
  );
  await refuses({ lora }, /\(LoRA\)/);
  const warmUp = { data: null, steps: 1, batchSize: 1, learningRate: 1, warmupSteps: 0, minRatio: 0 };
  await refuses({ lora, sft: warmUp }, /\(5 copies\)/);
});

test('adapters that do not fit are refused as well, also where a warm-up comes first', async () => {
  const huge = { ...lora, r: 1e9 };
  const warmUp = { data: null, steps: 1, batchSize: 1, learningRate: 1, warmupSteps: 0, minRatio: 0 };
  const refusal = { code: 'ModelUnsupported', message: /\(LoRA\).*a smaller r or a larger machine/ };
  await assert.rejects(checkModel({ ...run, lora: huge }), refusal);
  await assert.rejects(checkModel({ ...run, lora: huge, sft: warmUp }), refusal);
  await assert.rejects(EngineOptimizer.open(run.model, { threads: 1, lora: huge }), refusal);
});

test('weights that are cut off, and an index that names a missing file, are refused by name', async (t) => {
  const folder = await temporaryFolder(t);
  await cp(goldenFolder('llama3-scaled'), folder, { recursive: true });
  const ask = (): Promise<unknown> => checkModel({ ...run, model: folder });
  await ask();
  const weights = join(folder, 'model.safetensors');
  const whole = await readFile(weights);
  const data = whole.length - 8 - Number(whole.readBigUInt64LE(0));
  await truncate(weights, whole.length - 100);
  await assert.rejects(ask(), {
    code: 'CheckpointDamaged',
    message: `${weights} is damaged: expected ${data} bytes of tensors, got ${data - 100}. Restore it from another copy.`,
  });
  await rm(weights);
  await ask(); // they may come later
  const shards = ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors'];
  await writeFile(join(folder, shards[0]!), whole);
  const index = { weight_map: { a: shards[0], b: shards[1] } };
  await writeFile(join(folder, 'model.safetensors.index.json'), JSON.stringify(index));
  await assert.rejects(ask(), {
    code: 'ModelUnsupported',
    message: `${folder} has no ${shards[1]}, which its model.safetensors.index.json names. Fetch the model again.`,
  });
});
