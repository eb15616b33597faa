/** Gemma 3, Mistral and Qwen3-MoE, with SentencePiece: as llama.cpp's converter writes them (`test/data/gguf/record_families.py`), and back. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { decodeGgufHeader } from '../../engine/gguf/header.ts';
import { mergesOf, scoresOf } from '../../engine/gguf/sentencepiece.ts';
import { type ModelFolder, parseModelConfig, readGguf, Sampler, writeGguf } from '../../engine/index.ts';
import { assembleModel } from '../../engine/model/model-folder.ts';
import { temporaryFolder } from './models.ts';

const data = fileURLToPath(new URL('../data/gguf/', import.meta.url));
const fileOf = (name: string): string => path.join(data, `tiny-${name}.gguf`);
const recorded = JSON.parse(readFileSync(path.join(data, 'sentencepiece.json'), 'utf8')) as {
  readonly texts: readonly string[];
  readonly models: Readonly<Record<string, { readonly ids: readonly number[][]; readonly greedy: readonly number[] }>>;
};

/** The i-th weight of a tensor in record_families.py; a half holds it exactly, and so does a float with 1 added. */
const number = (name: string, i: number): number => (((i * 7919 + 31 * name.length) % 255) - 127) / 128;

/** transformers 5 has all experts of a layer in one tensor. */
function expectedOf({ config, parameters }: ModelFolder, name: string): Float32Array {
  const values = parameters.view(name);
  const [, layer, expert, part] =
    /^(model\.layers\.\d+\.mlp\.experts\.)(\d+)\.(gate|up|down)_proj\.weight$/.exec(name) ?? [];
  if (part === undefined || !config.experts) return values.map((_, i) => number(name, i));
  const { feedForwardSize } = config.experts;
  const own = feedForwardSize * config.hiddenSize;
  const [whole, each, first] =
    part === 'down' ? ['down_proj', own, 0] : ['gate_up_proj', 2 * own, part === 'up' ? own : 0];
  return values.map((_, i) => number(`${layer}${whole}`, Number(expert) * each + first + i));
}

for (const [name, { ids, greedy }] of Object.entries(recorded.models)) {
  test(`${name}: weights, texts and what is said next are llama.cpp's`, async (t) => {
    const model = await readGguf(fileOf(name));
    for (const spec of model.parameters.layout)
      assert.deepEqual(model.parameters.view(spec.name), expectedOf(model, spec.name), spec.name);
    const { tokenizer } = model;
    for (const [i, text] of recorded.texts.entries()) {
      assert.deepEqual(tokenizer.encode(text), ids[i], text);
      assert.equal(tokenizer.decode(ids[i]!), text);
    }
    assert.deepEqual(tokenizer.encode('Hello world', { addSpecialTokens: true }), [1, ...ids[0]!]);
    assert.deepEqual(await saidNext(t, model, [1, ...ids[0]!], greedy.length), greedy);
  });

  test(`${name}: import(export(x)) is x`, async (t) => {
    const model = await readGguf(fileOf(name));
    const file = path.join(await temporaryFolder(t), 'model.gguf');
    await writeGguf(model, file, { type: 'f16' });
    const back = await readGguf(file);
    assert.deepEqual(back.config, model.config);
    assert.deepEqual(back.parameters.flat, model.parameters.flat);
    for (const text of recorded.texts) assert.deepEqual(back.tokenizer.encode(text), model.tokenizer.encode(text));
    const [ours, theirs] = [file, fileOf(name)].map((one) => decodeGgufHeader(readFileSync(one), one).tensors);
    const described = (tensors: typeof ours): Map<string, unknown> =>
      new Map([...tensors!].map(([tensor, { shape, type }]) => [tensor, { shape, type }]));
    assert.deepEqual(described(ours), described(theirs));
  });
}

async function saidNext(t: TestContext, model: ModelFolder, promptTokenIds: number[], maxTokens: number) {
  const sampler = await Sampler.open(model.config, { threads: 1 });
  t.after(() => sampler.release());
  const request = { promptTokenIds, maxTokens, temperature: 0, seed: 0, stopTokenIds: [] };
  const [result] = await sampler.generate(model.parameters, [request]);
  return result!.tokenIds;
}

test('Gemma 3: windows of other layers, and a local rotary embedding of another base', async (t) => {
  const model = await readGguf(fileOf('gemma3'));
  const changed = {
    ...(JSON.parse(model.files['config.json']!) as object),
    layer_types: ['sliding_attention', 'full_attention', ...Array<string>(5).fill('sliding_attention')],
    rope_local_base_freq: 5000,
    rope_scaling: { type: 'linear', factor: 8 },
  };
  const files = { ...model.files, 'config.json': JSON.stringify(changed) };
  const other = assembleModel(files, parametersAs(model, files['config.json']));
  const file = path.join(await temporaryFolder(t), 'model.gguf');
  await writeGguf(other, file, { type: 'f32' });
  assert.deepEqual((await readGguf(file)).config, other.config);
});

test('Mistral with a window: the file’s context ends where the window does', async (t) => {
  const model = await readGguf(fileOf('mistral'));
  const changed = { ...(JSON.parse(model.files['config.json']!) as object), model_type: 'mistral', sliding_window: 32 };
  const files = { ...model.files, 'config.json': JSON.stringify(changed) };
  const file = path.join(await temporaryFolder(t), 'model.gguf');
  await writeGguf(assembleModel(files, parametersAs(model, files['config.json'])), file, { type: 'f32' });
  const back = await readGguf(file);
  assert.equal(back.config.positionsMax, 32);
  assert.deepEqual(back.config.attention, [{ window: null, rotary: 'global' }]);
});

function parametersAs({ parameters }: ModelFolder, config: string) {
  const Same = parameters.constructor as new (
    of: ReturnType<typeof parseModelConfig>,
    flat: Float32Array,
  ) => typeof parameters;
  return new Same(parseModelConfig(config, 'test'), parameters.flat);
}

test('merges have scores where every cut of a piece is one, side by side', () => {
  const pieces = { tokens: ['<s>', 'a', 'b', 'ab', 'aba', 'ba'], types: [3, 1, 1, 1, 1, 1] };
  const merges = mergesOf({ ...pieces, scores: [0, -9, -9, -1, -3, -2] });
  assert.deepEqual(merges, [
    ['a', 'b'],
    ['b', 'a'],
    ['a', 'ba'],
    ['ab', 'a'],
  ]);
  assert.deepEqual(scoresOf(merges, pieces), [0, -4, -4, -1, -3, -2]);
  assert.equal(scoresOf(merges.slice(0, 3), pieces), null, 'a cut is no merge');
  assert.equal(scoresOf([merges[2]!, ...merges.slice(0, 2), merges[3]!], pieces), null, 'merges of a piece lie apart');
});
