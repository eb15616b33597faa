import assert from 'node:assert/strict';
import { execFile, execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { cp, readFile, writeFile } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';
import { describeAdapter, readAdapter, saveAdapterFolder } from '../../engine/model/adapter-folder.ts';
import { adaptedLayers, adapterParameterCount, type LoraConfig } from '../../engine/model/adapter-layout.ts';
import {
  adapterInputs,
  AdapterParameters,
  createAdapter,
  mergeAdapter,
  MergedParameters,
  policyDigest,
} from '../../engine/model/lora.ts';
import { loadModelFolder, loadParameters, saveModelFolder } from '../../engine/model/model-folder.ts';
import { createPreset } from '../../engine/model/presets.ts';
import { Parameters } from '../../engine/model/parameters.ts';
import { decodeSafetensors, encodeSafetensors } from '../../engine/model/safetensors.ts';
import { adapterFolder, goldenFolder, readGolden, relativeDifference, trainGraphLogits } from './golden/read-golden.ts';
import { randomParameters, temporaryFolder, tinyConfig } from './models.ts';

const plain: LoraConfig = { r: 4, alpha: 8, dropout: 0, targetModules: 'all-linear' };
const reverseText = createPreset('preset:reverse-text-0.2m', { seed: 0 });

for (const name of ['qwen2-some', 'qwen3-all-rslora']) {
  test(`${name}: an adapter made by PEFT gives PEFT's logits, merged and beside its base`, async () => {
    const golden = await readGolden(adapterFolder(name));
    const merged = await loadParameters(adapterFolder(name));
    assert.ok(merged instanceof MergedParameters);
    const mergedDifference = relativeDifference(await trainGraphLogits(merged, golden.tokenIds), golden.logits);
    assert.ok(mergedDifference <= 1e-5, `merged: ${mergedDifference}`);

    const { baseFolder } = (await describeAdapter(adapterFolder(name)))!;
    const base = await loadParameters(baseFolder);
    const { adapter } = merged;
    const beside = await trainGraphLogits(base, golden.tokenIds, {
      adapters: (graph) => adapterInputs(graph, base.config, adapter.lora, { trainable: false }),
      tensors: adapter.tensors,
    });
    const besideDifference = relativeDifference(beside, golden.logits);
    assert.ok(besideDifference <= 1e-5, `beside: ${besideDifference}`);
  });
}

const python = process.env['RATCHET_TORCH_PYTHON'];
test(
  'an adapter of ours loads in PEFT and gives the same logits',
  { skip: python ? false : 'RATCHET_TORCH_PYTHON is not set' },
  async (t) => {
    const folder = await temporaryFolder(t);
    const baseFolder = goldenFolder('llama3-scaled');
    const base = await loadParameters(baseFolder);
    const { tokenIds } = await readGolden(baseFolder);
    const script = join(import.meta.dirname, 'golden', 'peft_logits.py');
    const shapes: LoraConfig[] = [
      { ...plain, dropout: 0.1 },
      { r: 3, alpha: 5, dropout: 0, targetModules: ['gate_proj', 'k_proj'], rankStabilized: true },
    ];
    for (const [i, lora] of shapes.entries()) {
      const adapter = noisyAdapter(base, lora);
      await saveAdapterFolder({ adapter, base: baseFolder, baseDigest: base.digest() }, join(folder, `${i}`));
      const args = [script, baseFolder, join(folder, `${i}`), JSON.stringify(tokenIds)];
      const { stdout } = await promisify(execFile)(python!, args, { maxBuffer: 2 ** 26 });
      const expected = Float32Array.from(JSON.parse(stdout.trim().split('\n').at(-1)!) as number[]);
      const difference = relativeDifference(await trainGraphLogits(mergeAdapter(base, adapter), tokenIds), expected);
      assert.ok(difference <= 1e-5, `${difference}`);
    }
  },
);

test('a new adapter changes nothing, and depends on its seed alone', () => {
  const { config, parameters } = reverseText;
  const adapter = createAdapter(config, plain, 7);
  assert.deepEqual(mergeAdapter(parameters, adapter).flat, parameters.flat);
  assert.equal(createAdapter(config, plain, 7).digest(), adapter.digest());
  assert.notEqual(createAdapter(config, plain, 8).digest(), adapter.digest());
  for (const { a, b, inputs } of adaptedLayers(config, plain)) {
    const bound = 1 / Math.sqrt(inputs);
    const largest = adapter.view(a).reduce((most, x) => Math.max(most, Math.abs(x)), 0);
    assert.ok(largest <= bound && largest > 0.9 * bound, `${a} reaches ${largest} of ${bound}`);
    assert.ok(adapter.view(b).every((x) => x === 0));
  }
});

test('target_modules adapts what it names, all-linear everything but embedding and output layer', () => {
  const { config } = reverseText;
  const targets = (targetModules: LoraConfig['targetModules']): string[] =>
    adaptedLayers(config, { ...plain, targetModules }).map(({ weight }) => weight);
  assert.equal(targets('all-linear').length, 7 * config.layerCount);
  assert.deepEqual(targets(['v_proj', 'self_attn.q_proj']), [
    'model.layers.0.self_attn.q_proj.weight',
    'model.layers.0.self_attn.v_proj.weight',
    'model.layers.1.self_attn.q_proj.weight',
    'model.layers.1.self_attn.v_proj.weight',
  ]);
  assert.deepEqual(targets(['model.layers.1.mlp.up_proj']), ['model.layers.1.mlp.up_proj.weight']);
  const count = adapterParameterCount(config, plain);
  assert.equal(new AdapterParameters(config, plain).flat.length, count);
  assert.equal(count, 2 * 4 * (3 * (96 + 256) + 2 * (96 + 96) + 2 * (96 + 48)));
});

test('what LoRA cannot adapt is refused', () => {
  const refuses = (change: Partial<LoraConfig>, message: RegExp): void =>
    assert.throws(() => adaptedLayers(reverseText.config, { ...plain, ...change }), {
      code: 'ModelUnsupported',
      message,
    });
  refuses({ targetModules: ['embed_tokens'] }, /without the embedding and the output layer, got "embed_tokens"/);
  refuses({ targetModules: ['q_proj', 'lm_head'] }, /"lm_head"/);
  refuses({ targetModules: ['q_porj'] }, /q_proj, .*down_proj, or "all-linear"\), got "q_porj"/);
  refuses({ targetModules: ['norm'] }, /"norm"/);
  refuses({ targetModules: [] }, /to name a linear layer/);
  refuses({ r: 0 }, /r to be an integer ≥ 1, got 0/);
  refuses({ dropout: 1 }, /dropout/);
  refuses({ alpha: NaN }, /alpha/);
});

test('merging adds scale · B A', () => {
  const base = randomParameters(tinyConfig, 1);
  const adapter = noisyAdapter(base, { r: 2, alpha: 3, dropout: 0, targetModules: ['k_proj'] });
  const merged = mergeAdapter(base, adapter);
  const { weight, a, b, inputs } = adaptedLayers(tinyConfig, adapter.lora)[0]!;
  const [A, B] = [adapter.view(a), adapter.view(b)];
  merged.view(weight).forEach((value, at) => {
    const [o, i] = [Math.floor(at / inputs), at % inputs];
    const added = 1.5 * (B[2 * o]! * A[i]! + B[2 * o + 1]! * A[inputs + i]!);
    assert.ok(Math.abs(value - (base.view(weight)[at]! + added)) < 1e-6);
  });
  assert.deepEqual(merged.view('model.norm.weight'), base.view('model.norm.weight'));
});

test('two processes merge to the same bits', () => {
  const script = `
    const { createPreset } = await import('./engine/model/presets.ts');
    const { createAdapter, mergeAdapter } = await import('./engine/model/lora.ts');
    const { config, parameters } = createPreset('preset:reverse-text-0.2m', { seed: 0 });
    const adapter = createAdapter(config, ${JSON.stringify(plain)}, 3);
    for (let i = 0; i < adapter.flat.length; i++) adapter.flat[i] += Math.fround(Math.sin(i) / 7);
    const merged = mergeAdapter(parameters, adapter);
    const { createHash } = await import('node:crypto');
    console.log(merged.digest(), createHash('sha256').update(new Uint8Array(merged.flat.buffer)).digest('hex'));`;
  const cwd = join(import.meta.dirname, '../..');
  const run = (): string =>
    execFileSync(process.execPath, ['--import', 'tsx', '--input-type=module', '-e', script], { cwd, encoding: 'utf8' });
  const first = run();
  assert.match(first, /^[0-9a-f]{64} [0-9a-f]{64}\n$/);
  assert.equal(run(), first);
});

test('a saved adapter loads as its base with the adapter merged, wherever both folders are moved', async (t) => {
  const folder = await temporaryFolder(t);
  const [baseFolder, saved] = [join(folder, 'there', 'base'), join(folder, 'there', 'adapter')];
  await saveModelFolder(reverseText, baseFolder);
  const adapter = noisyAdapter(reverseText.parameters, plain);
  const baseDigest = reverseText.parameters.digest();
  await saveAdapterFolder({ adapter, base: relative(saved, baseFolder), baseDigest }, saved);
  await cp(join(folder, 'there'), join(folder, 'elsewhere'), { recursive: true });
  for (const place of ['there', 'elsewhere']) {
    const loaded = await loadModelFolder(join(folder, place, 'adapter'));
    assert.deepEqual(loaded.parameters.flat, mergeAdapter(reverseText.parameters, adapter).flat);
    assert.equal(loaded.parameters.digest(), policyDigest(baseDigest, adapter));
    assert.deepEqual(loaded.files, reverseText.files);
    assert.deepEqual(loaded.config, reverseText.config);
  }
  const bytes = new Uint8Array(adapter.flat.buffer);
  const digest = createHash('sha256').update(baseDigest).update(bytes).digest('hex');
  assert.equal(policyDigest(baseDigest, adapter), digest);
});

test('whoever loads an adapter may check where its base is, and lend one that is in memory', async (t) => {
  const folder = await temporaryFolder(t);
  const base = await loadParameters(goldenFolder('qwen3-tied'));
  const adapter = noisyAdapter(base, plain);
  await saveAdapterFolder({ adapter, base: '/somewhere/else', baseDigest: base.digest() }, folder);
  await assert.rejects(loadParameters(folder), {
    code: 'ModelUnsupported',
    message: /\/somewhere\/else.*no config.json/,
  });
  const refuse = (): never => {
    throw new Error('outside of the allowed roots');
  };
  await assert.rejects(loadParameters(folder, { resolveBase: refuse }), /outside of the allowed roots/);
  const resolveBase = (named: string): string => {
    assert.equal(named, '/somewhere/else');
    return goldenFolder('qwen3-tied');
  };
  const mapped = await loadParameters(folder, { resolveBase });
  assert.deepEqual(mapped.flat, mergeAdapter(base, adapter).flat);
});

test('an adapter on another base than it was trained on is refused', async (t) => {
  const folder = await temporaryFolder(t);
  const base = await loadParameters(goldenFolder('qwen3-tied'));
  const other = new Parameters(
    base.config,
    base.flat.map((x) => x + 1),
  );
  const save = { adapter: noisyAdapter(base, plain), base: goldenFolder('qwen3-tied'), baseDigest: other.digest() };
  await saveAdapterFolder(save, folder);
  await assert.rejects(loadParameters(folder), {
    code: 'CheckpointDamaged',
    message: /another|trained on a base with digest/,
  });
});

test('what PEFT can say and the engine does not compute is refused by name', async (t) => {
  const folder = await temporaryFolder(t);
  await cp(adapterFolder('qwen2-some'), folder, { recursive: true });
  const path = join(folder, 'adapter_config.json');
  const config = JSON.parse(await readFile(path, 'utf8')) as Record<string, unknown>;
  const load = async (change: object): Promise<unknown> => {
    await writeFile(
      path,
      JSON.stringify({ ...config, base_model_name_or_path: goldenFolder('qwen2-tied'), ...change }),
    );
    return loadParameters(folder);
  };
  await load({});
  const changes = {
    use_dora: true,
    use_qalora: true,
    lora_bias: true,
    bias: 'all',
    fan_in_fan_out: true,
    modules_to_save: ['lm_head'],
    rank_pattern: { q_proj: 8 },
    alpha_pattern: { q_proj: 8 },
    layers_to_transform: [0],
    layers_pattern: 'layers',
    layer_replication: [[0, 1]],
    exclude_modules: ['q_proj'],
    trainable_token_indices: [1],
    target_parameters: ['x'],
    init_lora_weights: 'pissa',
    target_modules: '.*q_proj',
    task_type: 'SEQ_CLS',
    peft_type: 'IA3',
    a_field_of_tomorrow: 1,
  };
  for (const [name, value] of Object.entries(changes)) {
    await assert.rejects(load({ [name]: value }), { code: 'ModelUnsupported', message: new RegExp(name) }, name);
  }
});

test('an adapter whose tensors are not those its configuration names is refused', async (t) => {
  const folder = await temporaryFolder(t);
  await cp(adapterFolder('qwen2-some'), folder, { recursive: true });
  const path = join(folder, 'adapter_model.safetensors');
  const tensors = Object.fromEntries(decodeSafetensors(await readFile(path), path).tensors);
  const resolveBase = (): string => goldenFolder('qwen2-tied');
  const name = Object.keys(tensors)[0]!;
  const { [name]: _, ...fewer } = tensors;
  await writeFile(path, encodeSafetensors(fewer));
  await assert.rejects(loadParameters(folder, { resolveBase }), {
    code: 'CheckpointDamaged',
    message: /lacks 1 of 12/,
  });
  await writeFile(path, encodeSafetensors({ ...tensors, 'base_model.model.lm_head.lora_A.weight': tensors[name]! }));
  await assert.rejects(loadParameters(folder, { resolveBase }), { code: 'CheckpointDamaged', message: /lm_head/ });
  await writeFile(path, encodeSafetensors({ ...tensors, [name]: { shape: [1], data: new Float32Array(1) } }));
  await assert.rejects(loadParameters(folder, { resolveBase }), { code: 'CheckpointDamaged', message: /shape/ });
});

test('an adapter that was saved is read back bit for bit', async (t) => {
  const folder = await temporaryFolder(t);
  const base = randomParameters(tinyConfig, 2);
  const adapter = noisyAdapter(base, {
    ...plain,
    rankStabilized: true,
    dropout: 0.25,
    targetModules: ['o_proj', 'up_proj'],
  });
  await saveAdapterFolder({ adapter, base: 'base', baseDigest: base.digest() }, folder);
  const { lora, baseFolder } = (await describeAdapter(folder))!;
  assert.deepEqual(lora, adapter.lora);
  assert.equal(baseFolder, join(folder, 'base'));
  assert.deepEqual((await readAdapter(folder, lora, { config: tinyConfig, digest: base.digest() })).flat, adapter.flat);
  assert.equal(await describeAdapter(goldenFolder('qwen3-tied')), null);
});

/** A trained adapter: B is no longer zero. */
function noisyAdapter({ config }: Parameters, lora: LoraConfig): AdapterParameters {
  const adapter = createAdapter(config, lora, 5);
  const noise = randomParameters(config, 9).flat;
  adapter.flat.forEach(
    (value, i) => (adapter.flat[i] = value + 0.2 * Math.sin(31 * i) * (noise[i % noise.length]! + 0.1)),
  );
  return adapter;
}
