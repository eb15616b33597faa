import assert from 'node:assert/strict';
import { readdir, readFile, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import {
  decodeSafetensors,
  encodeSafetensors,
  loadModelFolder,
  openModel,
  parseModelConfig,
  saveModelFolder,
} from '../../engine/index.ts';
import { preset, temporaryFolder } from './models.ts';

const reverseText = preset();
const config = JSON.parse(reverseText.files['config.json']!) as Record<string, unknown>;
const parse = (change: object): unknown => parseModelConfig(JSON.stringify({ ...config, ...change }), 'config.json');

test('a saved folder loads as the same model', async (t) => {
  const folder = await temporaryFolder(t);
  await saveModelFolder(reverseText, folder);
  const loaded = await loadModelFolder(folder);
  assert.equal(loaded.parameters.digest(), reverseText.parameters.digest());
  assert.deepEqual(loaded.config, reverseText.config);
  assert.deepEqual(loaded.files, reverseText.files);
  assert.deepEqual((await readdir(folder)).toSorted(), [
    'config.json',
    'model.safetensors',
    'tokenizer.json',
    'tokenizer_config.json',
  ]);
});

test('a preset depends on its seed and on nothing else', async () => {
  assert.equal(preset(1).parameters.digest(), preset(1).parameters.digest());
  assert.notEqual(preset(1).parameters.digest(), preset(2).parameters.digest());
  await assert.rejects(openModel('preset:none', { seed: 0 }), {
    code: 'ModelUnsupported',
    message: /preset:reverse-text-0.2m/,
  });
});

test('a conversation becomes the last user message and a place for the answer', () => {
  const { tokenizer } = reverseText;
  const conversation = [
    { role: 'system', content: 'be brief' },
    { role: 'user', content: 'abc' },
    { role: 'assistant', content: 'cba' },
    { role: 'user', content: 'xyz' },
  ] as const;
  assert.deepEqual(tokenizer.renderChat(conversation), [3, 27, 28, 29, 2]);
  const answered = [...conversation, { role: 'assistant', content: 'zyx' } as const];
  assert.equal(tokenizer.renderChatText(answered, { addGenerationPrompt: false }), '<bos>xyz<sep>zyx<eos>');
  assert.deepEqual(tokenizer.encode('ab<eos>?'), [4, 5, 1, 0]);
  assert.equal(tokenizer.decode([3, 4, 5, 1]), 'ab');
});

test('what the engine cannot compute is refused with what was expected and what came', () => {
  const refuses = (change: object, message: RegExp): void =>
    assert.throws(() => parse(change), { code: 'ModelUnsupported', message });
  refuses({ model_type: 'gpt2' }, /model_type to be one of "qwen3", "qwen2", "llama", .*, got "gpt2"/);
  refuses({ model_type: undefined }, /no model_type/);
  refuses({ head_dim: 24 }, /head_dim to be a multiple of 16, got 24/);
  refuses({ num_key_value_heads: 4 }, /multiple of num_key_value_heads, got 6 and 4/);
  refuses({ hidden_size: 'x' }, /hidden_size/);
  refuses({ rope_parameters: { rope_theta: 1e4, rope_type: 'dynamic' } }, /"yarn", got "dynamic"/);
  refuses({ hidden_act: 'gelu' }, /gelu/);
  assert.throws(() => parseModelConfig('{', 'config.json'), { code: 'ModelUnsupported' });
});

test('both spellings of the rotary base are read', () => {
  assert.equal((parse({ rope_parameters: undefined, rope_theta: 5e5 }) as { ropeTheta: number }).ropeTheta, 5e5);
  assert.equal(
    (parse({ rope_parameters: { rope_theta: 1e6 }, rope_theta: undefined }) as { ropeTheta: number }).ropeTheta,
    1e6,
  );
});

test('a model too large for the machine is refused before its weights are read', async (t) => {
  const folder = await temporaryFolder(t);
  await saveModelFolder(reverseText, folder);
  await writeFile(
    join(folder, 'config.json'),
    JSON.stringify({ ...config, num_hidden_layers: 100_000, hidden_size: 8192 }),
  );
  await assert.rejects(loadModelFolder(folder), { code: 'ModelUnsupported', message: /GiB/ });
});

test('a folder that lacks a file, a tensor or some bytes says so', async (t) => {
  const folder = await temporaryFolder(t);
  await assert.rejects(loadModelFolder(folder), { code: 'ModelUnsupported', message: /no config.json/ });
  await saveModelFolder(reverseText, folder);
  const weights = join(folder, 'model.safetensors');
  const { tensors } = decodeSafetensors(await readFile(weights), 'weights');
  const { 'model.norm.weight': _, ...rest } = Object.fromEntries(tensors);
  await writeFile(weights, encodeSafetensors(rest));
  await assert.rejects(loadModelFolder(folder), { code: 'CheckpointDamaged', message: /model\.norm\.weight/ });
  await writeFile(
    weights,
    encodeSafetensors({ ...rest, 'model.norm.weight': { shape: [2], data: new Float32Array(2) } }),
  );
  await assert.rejects(loadModelFolder(folder), { code: 'CheckpointDamaged', message: /shape \[96\]/ });
  await saveModelFolder(reverseText, folder);
  await truncate(weights, 1000);
  await assert.rejects(loadModelFolder(folder), { code: 'CheckpointDamaged' });
});
