import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { open, readFile, rm, stat, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';
import fc from 'fast-check';
import { randomStream } from '../../core/random.ts';
import { fromBrainFloats, fromHalfFloats, toBrainFloats, toHalfFloats } from '../../engine/model/half-floats.ts';
import { loadModelFolder, loadParameters, saveModelFolder } from '../../engine/model/model-folder.ts';
import type { Parameters } from '../../engine/model/parameters.ts';
import { createPreset } from '../../engine/model/presets.ts';
import { decodeSafetensors, encodeSafetensors, type FloatType } from '../../engine/model/safetensors.ts';
import { SafetensorsReader, writeSafetensors } from '../../engine/model/safetensors-file.ts';
import { goldenFolder } from './golden/read-golden.ts';
import { temporaryFolder } from './models.ts';

const reverseText = createPreset('preset:reverse-text-0.2m', { seed: 0 });
const widenings = { bfloat16: fromBrainFloats, float16: fromHalfFloats };
const narrowings = { bfloat16: toBrainFloats, float16: toHalfFloats };

for (const dtype of ['bfloat16', 'float16'] as const) {
  const values = allValues(dtype);

  test(`${dtype} is read back from every one of its bit patterns`, () => {
    const again = new Uint16Array(values.length);
    narrowings[dtype](values, again);
    again.forEach((bits, i) => assert.ok(bits === i || (Number.isNaN(values[i]!) && isNaNBits(bits, dtype))));
  });

  test(`${dtype} is written to the nearest value, ties to the even one`, () => {
    const finite = values.filter((value) => Number.isFinite(value)).toSorted((a, b) => a - b);
    const nearest = (value: number): number[] => {
      const above = finite.findIndex((candidate) => candidate >= value);
      const [high, low] = [finite[above]!, finite[Math.max(0, above - 1)]!];
      if (value - low !== high - value) return [value - low < high - value ? low : high];
      return [low, high].filter((candidate) => narrow(dtype, candidate) % 2 === 0);
    };
    const limit = dtype === 'float16' ? 65_504 : 3e38;
    const number = fc.oneof(
      fc.float({ min: -1, max: 1, noNaN: true }),
      fc.float({ noNaN: true, noDefaultInfinity: true }),
    );
    fc.assert(
      fc.property(number, (value) => {
        fc.pre(Math.abs(value) <= limit);
        assert.ok(nearest(value).includes(widen(dtype, narrow(dtype, value))), `${value}`);
      }),
      { numRuns: 500 },
    );
    for (let i = 1; i < 500; i++) {
      const [a, b] = [finite[(i * 131) % finite.length]!, finite[((i * 131) % finite.length) + 1] ?? Infinity];
      const tie = Math.fround((a + b) / 2);
      if (Number.isFinite(b) && tie - a === b - tie) assert.ok(nearest(tie).includes(widen(dtype, narrow(dtype, tie))));
    }
  });
}

test('infinity, not-a-number and the ends of half precision', () => {
  const cases: readonly (readonly [FloatType & ('bfloat16' | 'float16'), number, number])[] = [
    ['float16', 65_519.99, 65_504],
    ['float16', 65_520, Infinity],
    ['float16', -1e9, -Infinity],
    ['float16', 2 ** -25, 0],
    ['float16', 1.0001 * 2 ** -25, 2 ** -24],
    ['float16', 2 ** -14 - 2 ** -26, 2 ** -14],
    ['float16', Infinity, Infinity],
    ['float16', NaN, NaN],
    ['bfloat16', NaN, NaN],
    ['bfloat16', 3.4e38, Infinity],
    ['bfloat16', -0, -0],
    ['float16', -0, -0],
  ];
  for (const [dtype, value, expected] of cases)
    assert.ok(Object.is(widen(dtype, narrow(dtype, value)), expected), `${value}`);
});

for (const dtype of ['float32', 'bfloat16', 'float16'] as const) {
  test(`a model saved as ${dtype} loads with its weights rounded to that, and says so in config.json`, async (t) => {
    const folder = await temporaryFolder(t);
    await saveModelFolder(reverseText, folder, { dtype });
    const loaded = await loadModelFolder(folder);
    const rounded = dtype === 'float32' ? reverseText.parameters.flat : roundedTo(dtype, reverseText.parameters.flat);
    assert.deepEqual(loaded.parameters.flat, rounded);
    assert.equal((JSON.parse(loaded.files['config.json']!) as { dtype: string }).dtype, dtype);
    const { size } = await stat(join(folder, 'model.safetensors'));
    assert.ok(size > reverseText.parameters.flat.length * (dtype === 'float32' ? 4 : 2));
  });
}

test('a model written tensor by tensor is the file that is made in memory', async (t) => {
  const folder = await temporaryFolder(t);
  await saveModelFolder(reverseText, folder);
  const file = await readFile(join(folder, 'model.safetensors'));
  assert.ok(Buffer.from(encodeParameters(reverseText.parameters)).equals(file));
});

test('weights beyond the range of float16 are not saved as infinity', async (t) => {
  const folder = await temporaryFolder(t);
  const parameters = reverseText.parameters.clone();
  parameters.view('model.norm.weight')[3] = 1e5;
  const save = saveModelFolder({ ...reverseText, parameters }, folder, { dtype: 'float16' });
  await assert.rejects(save, { code: 'Unsupported', message: /"model.norm.weight" holds 100000/ });
});

test('checkpoints written by transformers in three precisions load', async () => {
  for (const name of ['qwen3-tied', 'qwen3-untied-bf16', 'qwen2-untied-fp16']) {
    const file = await readFile(join(goldenFolder(name), 'model.safetensors'));
    const parameters = await loadParameters(goldenFolder(name));
    for (const [tensor, { data }] of decodeSafetensors(file, name).tensors) {
      assert.deepEqual(parameters.view(tensor), data);
    }
  }
});

test('a checkpoint of several files is read by its index, and missing ones are named', async (t) => {
  const folder = await temporaryFolder(t);
  const { tensors } = decodeSafetensors(encodeParameters(reverseText.parameters), 'weights');
  const partOf = (name: string): string => `model-0000${name.includes('layers.1') ? 2 : 1}-of-00002.safetensors`;
  const weight_map = Object.fromEntries([...tensors.keys()].map((name) => [name, partOf(name)]));
  await writeFile(join(folder, 'config.json'), reverseText.files['config.json']!);
  await writeFile(join(folder, 'model.safetensors.index.json'), JSON.stringify({ metadata: {}, weight_map }));
  const files = [...new Set(Object.values(weight_map))];
  await assert.rejects(loadParameters(folder), { code: 'ModelUnsupported', message: new RegExp(`has no ${files[0]}`) });
  for (const file of files) {
    const part = [...tensors].filter(([name]) => partOf(name) === file);
    await writeFile(join(folder, file), encodeSafetensors(Object.fromEntries(part)));
  }
  assert.equal((await loadParameters(folder)).digest(), reverseText.parameters.digest());
  await writeFile(join(folder, 'model.safetensors.index.json'), JSON.stringify({ weight_map: { x: '../x' } }));
  await assert.rejects(loadParameters(folder), { code: 'CheckpointDamaged' });
});

test('a file that holds more than the configuration implies belongs to another model', async (t) => {
  const folder = await temporaryFolder(t);
  await saveModelFolder(reverseText, folder);
  const path = join(folder, 'model.safetensors');
  const tensors = Object.fromEntries(decodeSafetensors(await readFile(path), path).tensors);
  const extra = { shape: [1], data: new Float32Array(1) };
  await writeFile(path, encodeSafetensors({ ...tensors, 'lm_head.weight': extra }));
  await loadParameters(folder);
  await writeFile(path, encodeSafetensors({ ...tensors, 'model.layers.0.self_attn.q_proj.bias': extra }));
  await assert.rejects(loadParameters(folder), { code: 'CheckpointDamaged', message: /q_proj.bias/ });
});

test('a tensor beyond 4 GiB is read from a file that no buffer could hold', async (t) => {
  const path = join(await temporaryFolder(t), 'large.safetensors');
  const [large, small] = [5 * 2 ** 30, 12];
  const header = JSON.stringify({
    large: { dtype: 'F32', shape: [large / 4], data_offsets: [0, large] },
    small: { dtype: 'F32', shape: [3], data_offsets: [large, large + small] },
  }).padEnd(256);
  await writeFile(path, Buffer.concat([Buffer.from(new BigUint64Array([256n]).buffer), Buffer.from(header)]));
  await truncate(path, 264 + large + small); // a hole: the file takes no room
  const file = await open(path, 'r+');
  await file.write(new Uint8Array(Float32Array.of(1, -2, 3).buffer), 0, small, 264 + large);
  await file.close();
  const reader = await SafetensorsReader.open(path);
  const target = new Float32Array(3);
  await reader.readFloats('small', target);
  assert.deepEqual(target, Float32Array.of(1, -2, 3));
  await reader.close();
});

test('reading and writing hold no second copy of the weights', async (t) => {
  const path = join(await temporaryFolder(t), 'weights.safetensors');
  const data = new Float32Array(1 << 24).map((_, i) => i % 251);
  const tensors = { weights: { shape: [data.length], data } };
  for (const dtype of ['float32', 'bfloat16'] as const) {
    const target = new Float32Array(data.length);
    const extra = await extraBytes(async () => {
      const file = await open(path, 'w');
      await writeSafetensors(file, tensors, { metadata: {}, dtype });
      await file.close();
      const reader = await SafetensorsReader.open(path);
      await reader.readFloats('weights', target);
      await reader.close();
    });
    assert.ok(target.every((value, i) => value === data[i]));
    assert.ok(extra < data.byteLength / 2, `${dtype}: ${extra} bytes beside ${data.byteLength}`);
  }
});

const python = process.env['RATCHET_TORCH_PYTHON'];
const skip = python ? false : 'RATCHET_TORCH_PYTHON is not set';
test('Python reads our files, and PyTorch rounds to half precision as we do', { skip }, async (t) => {
  const folder = await temporaryFolder(t);
  const random = randomStream('half');
  const bits = Uint32Array.from({ length: 30_000 }, () => Math.floor(random() * 2 ** 32));
  const anything = new Float32Array(bits.buffer).map((value) => (Number.isFinite(value) ? value : 1));
  // float16 refuses what it cannot hold, so all stay below its end; every exponent below that occurs.
  const data = anything.map((value) => (Math.abs(value) < 65_000 ? value : value / 2 ** 113));
  const tensors = { odd: { shape: [3, 10_000], data }, scalar: { shape: [], data: Float32Array.of(0.1) } };
  const paths = await Promise.all(
    (['float32', 'bfloat16', 'float16'] as const).map(async (dtype) => {
      const path = join(folder, `${dtype}.safetensors`);
      const file = await open(path, 'w');
      await writeSafetensors(file, tensors, { metadata: { format: 'pt' }, dtype });
      await file.close();
      return path;
    }),
  );
  const script = join(import.meta.dirname, 'golden', 'read_safetensors.py');
  const { stdout } = await promisify(execFile)(python!, [script, ...paths]);
  const seen = JSON.parse(stdout) as { sums: Record<string, number>; [key: string]: unknown };
  assert.deepEqual(seen['metadata'], { format: 'pt' });
  assert.deepEqual(seen['shapes'], { odd: [3, 10_000], scalar: [] });
  assert.ok(Math.abs(seen.sums['odd']! - data.reduce((a, b) => a + b, 0)) < 1e-6 * 65_000);
  assert.equal(seen.sums['scalar'], Math.fround(0.1));
  assert.deepEqual([seen['bfloat16'], seen['float16']], [true, true]);
});

function allValues(dtype: 'bfloat16' | 'float16'): Float32Array {
  const values = new Float32Array(1 << 16);
  widenings[dtype](
    Uint16Array.from(values, (_, i) => i),
    values,
  );
  return values;
}

function roundedTo(dtype: 'bfloat16' | 'float16', values: Float32Array): Float32Array {
  return values.map((value) => widen(dtype, narrow(dtype, value)));
}

function narrow(dtype: 'bfloat16' | 'float16', value: number): number {
  const bits = new Uint16Array(1);
  narrowings[dtype](Float32Array.of(value), bits);
  return bits[0]!;
}

function widen(dtype: 'bfloat16' | 'float16', bits: number): number {
  const value = new Float32Array(1);
  widenings[dtype](Uint16Array.of(bits), value);
  return value[0]!;
}

function isNaNBits(bits: number, dtype: 'bfloat16' | 'float16'): boolean {
  return (bits & 0x7fff) > (dtype === 'float16' ? 0x7c00 : 0x7f80);
}

/** The most bytes in array buffers while `work` runs, beyond those at its start. */
async function extraBytes(work: () => Promise<void>): Promise<number> {
  const start = process.memoryUsage().arrayBuffers;
  let most = start;
  const timer = setInterval(() => (most = Math.max(most, process.memoryUsage().arrayBuffers)), 1);
  await work();
  clearInterval(timer);
  return most - start;
}

test('a file beside the weights that is not JSON is named', async (t) => {
  const folder = await temporaryFolder(t);
  await saveModelFolder(reverseText, folder);
  for (const name of ['config.json', 'generation_config.json', 'tokenizer.json']) {
    await writeFile(join(folder, name), '{');
    const message = new RegExp(`${name}.* not JSON`);
    await assert.rejects(loadModelFolder(folder), { code: 'ModelUnsupported', message });
    await writeFile(join(folder, name), reverseText.files[name] ?? '{}');
  }
  await rm(join(folder, 'model.safetensors'));
  await writeFile(join(folder, 'model.safetensors.index.json'), '{');
  await assert.rejects(loadModelFolder(folder), { code: 'ModelUnsupported', message: /index\.json is not JSON/ });
});

/** A file of weights, made in memory. */
function encodeParameters(parameters: Parameters): Uint8Array {
  const tensors = parameters.layout.map(({ name, shape }) => [name, { shape, data: parameters.view(name) }] as const);
  return encodeSafetensors(Object.fromEntries(tensors), { format: 'pt' });
}
