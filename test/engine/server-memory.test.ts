import assert from 'node:assert/strict';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { type ModelConfig, type ModelFolder, parseModelConfig, saveModelFolder } from '../../engine/index.ts';
import { saveAdapterFolder } from '../../engine/model/adapter-folder.ts';
import { createAdapter } from '../../engine/model/lora.ts';
import { assembleModel, loadModelTexts } from '../../engine/model/model-folder.ts';
import { presetFiles } from '../../engine/model/preset-files.ts';
import { MemoryTooSmall, serverMemory } from '../../engine/sample/server-memory.ts';
import { SharedTokenizers } from '../../engine/model/tokenizer/shared-tokenizers.ts';
import { GradientComputer } from '../../engine/train/gradient-computer.ts';
import { rowBytes } from '../../engine/sample/row-bytes.ts';
import { Sampler } from '../../engine/sample/sampler.ts';
import { defaultSamplingLimits } from '../../engine/sample/sampling-limits.ts';
import { preset, randomParameters, temporaryFolder } from './models.ts';
import { openStage } from './server-stage.ts';

const laptop = { totalBytes: 16e9 };

/** HuggingFaceTB/SmolLM2-135M-Instruct. */
const smollm2 = parseModelConfig(
  JSON.stringify({
    model_type: 'llama',
    vocab_size: 49152,
    hidden_size: 576,
    num_hidden_layers: 30,
    num_attention_heads: 9,
    num_key_value_heads: 3,
    intermediate_size: 1536,
    rms_norm_eps: 1e-5,
    rope_theta: 100000,
    tie_word_embeddings: true,
    max_position_embeddings: 8192,
    eos_token_id: 2,
  }),
  'config.json',
);

/** The middle shape of `bench policy-server-memory`. */
const middle: ModelConfig = {
  ...parseModelConfig(presetFiles('preset:chars-0.4m')['config.json']!, 'config.json'),
  vocabularySize: 16_384,
  hiddenSize: 384,
  feedForwardSize: 1024,
  layerCount: 12,
  headCount: 6,
  keyValueHeadCount: 2,
  headSize: 64,
  tiedEmbeddings: true,
};

const larger: ModelConfig = { ...smollm2, layerCount: 60, hiddenSize: 1152 };

test('SmolLM2 is sampled within 1.5 GB by default', () => {
  const { budgetBytes, weightBytesMax, versionBytes } = serverMemory(smollm2, { memory: laptop });
  assert.equal(budgetBytes, 1.5e9);
  assert.equal(weightBytesMax, versionBytes, 'one version at a time');
});

test('a small machine gives a quarter of its memory, and a model that needs more gets what it needs', () => {
  const small = { totalBytes: 4e9 };
  assert.equal(serverMemory(preset(0).config, { memory: small }).budgetBytes, 1e9);
  assert.ok(serverMemory(smollm2, { memory: small }).budgetBytes > 1.4e9);
  const needed = serverMemory(larger, { memory: laptop });
  assert.ok(needed.budgetBytes > needed.versionBytes + needed.processBytes);
});

test('the plan stays within any budget', () => {
  const configs = [preset(0).config, smollm2, larger];
  const bits = fc.constantFrom(undefined, 'int8' as const, 'int4' as const);
  fc.assert(
    fc.property(
      fc.constantFrom(...configs),
      bits,
      fc.double({ min: 0, max: 12, noNaN: true }),
      (config, quantize, more) => {
        const leastGb = leastOf(config, quantize);
        const plan = serverMemory(config, { memoryGb: leastGb + more, quantize, memory: laptop });
        const { keyValueBytesMax, aloneBytesMax, promptBytesMax } = plan.limits;
        const planned = plan.processBytes + plan.weightBytesMax + keyValueBytesMax + promptBytesMax;
        assert.ok(planned < plan.budgetBytes, JSON.stringify(plan));
        const all = plan.processBytes + plan.weightBytesMax + plan.workBytes;
        assert.ok(Math.abs(all - plan.budgetBytes) < 1, JSON.stringify(plan));
        assert.ok(aloneBytesMax <= keyValueBytesMax, 'what was asked for holds for long rows too');
      },
    ),
  );
});

test('too small a budget is refused with one that is enough', () => {
  assert.throws(
    () => serverMemory(smollm2, { memoryGb: 0.5 }),
    /memory_gb.*expected at least 1\.\d: .*; got 0\.5\. Write 1\.\d/,
  );
  const least = leastOf(smollm2, undefined);
  assert.equal(serverMemory(smollm2, { memoryGb: least }).budgetBytes, least * 1e9);
});

/**
 * `npm run bench -- policy-server-memory --shape … --memory-gb …`, with the least that does (x86-64, Linux, Node 20): the most that the
 * process ever had, in GB.
 */
const measured = [
  {
    shape: 'preset:chars-0.4m',
    config: parseModelConfig(presetFiles('preset:chars-0.4m')['config.json']!, ''),
    gb: 0.18,
  },
  { shape: 'middle', config: middle, gb: 0.41 },
  // The peak was measured at the default budget, which is 0.11 GB above the least one.
  { shape: 'smollm2-135m-instruct', config: smollm2, gb: 1.48 },
];

for (const { shape, config, gb } of measured) {
  test(`the least memory for the shape of ${shape} is what was measured`, () => {
    const ratio = tooSmall(config).neededBytes / (1e9 * gb);
    assert.ok(ratio >= 0.9 && ratio <= 1.35, `the plan is ${ratio.toFixed(2)} of what was measured`);
  });
}

test('a model of another architecture gets what the first leaves, and more is asked for or refused', () => {
  const first = serverMemory(smollm2, { memory: laptop });
  const second = serverMemory(larger, { memory: laptop, others: [first] });
  const sum = second.processBytes + second.weightBytesMax + first.workBytes + second.workBytes;
  assert.ok(Math.abs(sum - second.budgetBytes) < 1, 'together they are what is said');
  assert.throws(() => serverMemory(larger, { memoryGb: 1.5, others: [first] }), MemoryTooSmall);
  const small = serverMemory(preset(0).config, { memoryGb: 1, memory: laptop });
  const beside = serverMemory(middle, { memoryGb: 1.5, others: [small] });
  assert.ok(small.workBytes + beside.workBytes + beside.processBytes + beside.weightBytesMax <= 1.5e9);
});

test('with more memory more versions stay, and more is sampled at once', () => {
  const [little, much] = [1.5, 4].map((memoryGb) => serverMemory(smollm2, { memoryGb }));
  assert.ok(much!.weightBytesMax >= 2 * little!.weightBytesMax);
  assert.ok(much!.keepsBase && !little!.keepsBase);
  assert.ok(much!.limits.keyValueBytesMax > little!.limits.keyValueBytesMax);
  assert.ok(much!.limits.rowsMax > little!.limits.rowsMax);
});

test('versions that are unloaded and loaded again answer the same, bit for bit, with little memory and with much', async (t) => {
  const answers = [];
  for (const memory_gb of [leastOf(wideConfig, undefined), 4]) {
    const stage = await openStage(t);
    const [first, second] = [wideModel(0), wideModel(1)];
    await stage.hold('first', first, { memory_gb });
    await stage.hold('second', second, { memory_gb });
    const adapter = createAdapter(first.config, { r: 2, alpha: 4, dropout: 0, targetModules: 'all-linear' }, 3);
    adapter.flat.fill(0.01);
    const folder = join(stage.folder, 'adapter');
    await saveAdapterFolder(
      { adapter, base: join(stage.folder, 'first'), baseDigest: first.parameters.digest() },
      folder,
    );
    await stage.ask('/update_weights', { name: 'adapted', weight_dir: folder, memory_gb });
    const said = [];
    for (const model of ['first', 'second', 'adapted', 'first', 'adapted', 'second']) {
      said.push(await completion(stage, model));
    }
    const together = await Promise.all(['second', 'first', 'adapted'].map((model) => completion(stage, model)));
    assert.deepEqual(together, [said[1], said[0], said[2]], 'also at the same time');
    assert.deepEqual([said[3], said[4], said[5]], [said[0], said[2], said[1]]);
    assert.notDeepEqual(said[0], said[2]);
    answers.push(said);
    const held = await stage.metric('ratchet_weight_bytes');
    const versions = held / serverMemory(wideConfig).versionBytes;
    assert.equal(versions, memory_gb === 4 ? 3.5 : 1, 'the base of adapters stays where there is room for it');
  }
  assert.deepEqual(answers[0], answers[1]);
});

test('what is sampled together and what prompts are scored with do not change the bits', async (t) => {
  const prompts = Array.from({ length: 40 }, (_, i) =>
    Array.from({ length: 2 + ((7 * i) % 50) }, (_, k) => 3 + ((i + k) % 26)),
  );
  const body = { prompt: prompts, seeds: prompts.map((_, i) => i), max_tokens: 8, logprobs: 1, prompt_logprobs: 1, return_token_ids: true }; // prettier-ignore
  const answers = [];
  for (const memory_gb of [leastOf(wideConfig, undefined), 4]) {
    const stage = await openStage(t);
    await stage.hold('first', wideModel(0), { memory_gb });
    answers.push((await stage.ask<{ choices: unknown[] }>('/v1/completions', { ...body, model: 'first' })).choices);
  }
  assert.equal(answers[0]!.length, prompts.length);
  assert.match(JSON.stringify(answers[0]), /"prompt_logprobs":\[null,{"4"/);
  assert.deepEqual(answers[0], answers[1]);
});

test('rows have the same bits however few run at once', async () => {
  const { parameters } = wideModel(0);
  const requests = Array.from({ length: 40 }, (_, i) => ({
    promptTokenIds: Array.from({ length: 2 + ((7 * i) % 50) }, (_, k) => 3 + ((i + k) % 26)),
    maxTokens: 1 + (i % 9),
    temperature: i % 4 === 0 ? 0 : 1,
    seed: i,
    stopTokenIds: [],
  }));
  const keyValueBytesMax = 10 * rowBytes(wideConfig, 64);
  const few = {
    keyValueBytesMax,
    aloneBytesMax: keyValueBytesMax,
    promptBytesMax: 0,
    prefillPositionsMax: 64,
    rowsMax: 8,
  };
  const said = [];
  for (const limits of [few, defaultSamplingLimits]) {
    const sampler = await Sampler.open(wideConfig, { threads: 1, limits });
    said.push(await sampler.generate(parameters, requests));
    await sampler.release();
  }
  assert.deepEqual(said[0], said[1]);
});

test('prompts are scored with the same bits however few are computed at once', async () => {
  const { parameters } = wideModel(0);
  const samples = Array.from({ length: 12 }, (_, i) => {
    const tokenIds = Array.from({ length: 3 + 5 * i }, (_, k) => 3 + ((i * k) % 26));
    return { tokenIds, lossMask: tokenIds.map((_, k) => Number(k > 0)) };
  });
  const scores = [];
  for (const limits of [{ positionsMax: 64, logitsMax: 8 * wideConfig.vocabularySize }, {}]) {
    const computer = new GradientComputer(wideConfig, { threads: 1, ...limits });
    scores.push(await computer.score(samples, { parameters, adapter: null }, 1));
    await computer.close();
  }
  assert.deepEqual(scores[0], scores[1]);
});

test('versions of one tokenizer share it', async (t) => {
  const folder = await temporaryFolder(t);
  const tokenizers = new SharedTokenizers();
  for (const name of ['a', 'b']) await saveModelFolder(wideModel(0), join(folder, name));
  const [a, b] = await Promise.all(['a', 'b'].map((name) => loadModelTexts(join(folder, name), { tokenizers })));
  assert.equal(a!.tokenizer, b!.tokenizer);
  const timed = await loadModelTexts(join(folder, 'a'), { tokenizers, templateTime: '2026-01-01T00:00' });
  assert.notEqual(timed.tokenizer, a!.tokenizer, 'its template is told another time');
});

test('a version that somebody keeps stays when its folder is gone', async (t) => {
  const memory_gb = leastOf(wideConfig, undefined);
  const stage = await openStage(t);
  await stage.hold('run:main:1', wideModel(0), { memory_gb });
  const before = await completion(stage, 'run:main:1');
  await stage.ask('/hold_version', { name: 'run:main:1', holder: 'evaluation', seconds: 60 });
  await rm(join(stage.folder, 'run_main_1'), { recursive: true });
  await stage.hold('run:main:2', wideModel(1), { memory_gb });
  await completion(stage, 'run:main:2');
  assert.deepEqual(await completion(stage, 'run:main:1'), before);
});

test('adapters beside a quantized base leave memory when others are sampled', async (t) => {
  const stage = await openStage(t);
  const base = wideModel(0);
  await stage.hold('base', base, { quantize: 'int8' });
  const said = [];
  const names = ['run:main:1', 'run:main:2', 'run:main:3'];
  for (const [i, name] of names.entries()) {
    const adapter = createAdapter(base.config, { r: 2, alpha: 4, dropout: 0, targetModules: 'all-linear' }, i);
    adapter.flat.fill(0.01 * (i + 1));
    const weight_dir = join(stage.folder, `adapter-${i}`);
    const save = { adapter, base: join(stage.folder, 'base'), baseDigest: base.parameters.digest() };
    await saveAdapterFolder(save, weight_dir);
    await stage.ask('/update_weights', { name, weight_dir, quantize: 'int8' });
    said.push(await completion(stage, name));
  }
  const again = await Promise.all(names.map((name) => completion(stage, name)));
  assert.deepEqual(again, said, 'read again, and sampled at the same time');
  await rm(join(stage.folder, 'adapter-0'), { recursive: true });
  assert.equal((await stage.refusal('/v1/completions', completionBody(names[0]!))).status, 409);
});

test('a version whose folder is gone when it is wanted in memory again is not held any more', async (t) => {
  const memory_gb = leastOf(wideConfig, undefined);
  const stage = await openStage(t);
  await stage.hold('run:main:1', wideModel(0), { memory_gb });
  const before = await completion(stage, 'run:main:1');
  await stage.hold('run:main:2', wideModel(1), { memory_gb });
  await completion(stage, 'run:main:2');
  await saveModelFolder(wideModel(2), join(stage.folder, 'run_main_1'));
  const refusal = await stage.refusal('/v1/completions', completionBody('run:main:1'));
  assert.equal(refusal.status, 409, 'whoever asks brings it back, as after any eviction');
  assert.match(refusal.message, /"run:main:1" is not held any more, as .* has other weights than it had/);
  await stage.hold('run:main:1', wideModel(0), { memory_gb });
  assert.deepEqual(await completion(stage, 'run:main:1'), before);
});

test('thirty versions one after the other leave nothing behind', async (t) => {
  const stage = await openStage(t);
  const memory_gb = leastOf(wideConfig, undefined);
  const publish = async (from: number, to: number): Promise<void> => {
    for (let version = from; version < to; version++) {
      await stage.hold(`run:main:${version}`, wideModel(version), { memory_gb });
      await completion(stage, `run:main:${version}`);
    }
  };
  await publish(0, 10);
  const before = process.memoryUsage.rss();
  await publish(10, 40);
  const grown = process.memoryUsage.rss() - before;
  const { versionBytes } = serverMemory(wideConfig);
  assert.ok(grown < 6 * versionBytes, `${grown} bytes more after 30 versions of ${versionBytes}`);
  assert.equal(await stage.metric('ratchet_weight_bytes'), versionBytes);
});

test('too little memory for a version is refused, and held versions keep working', async (t) => {
  const stage = await openStage(t);
  await stage.hold('first', wideModel(0));
  const folder = join(stage.folder, 'second');
  await saveModelFolder(wideModel(1), folder);
  const refusal = await stage.refusal('/update_weights', { name: 'second', weight_dir: folder, memory_gb: 0.1 });
  assert.equal(refusal.status, 400);
  assert.match(refusal.message, /memory_gb.*expected at least 0\.\d: .*got 0\.1/);
  assert.ok((await completion(stage, 'first')).length > 0);
});

type Stage = Awaited<ReturnType<typeof openStage>>;

/** Large enough to have its weights packed: 2.6 million parameters. */
const wideFiles = (() => {
  const files = presetFiles('preset:reverse-text-0.2m');
  const wide = { hidden_size: 256, intermediate_size: 1024, num_hidden_layers: 3 };
  return { ...files, 'config.json': JSON.stringify({ ...JSON.parse(files['config.json']!), ...wide }) };
})();
const wideConfig = parseModelConfig(wideFiles['config.json'], 'config.json');

function wideModel(seed: number): ModelFolder {
  return assembleModel(wideFiles, randomParameters(wideConfig, seed));
}

function completionBody(model: string): object {
  return {
    model,
    prompt: [
      [3, 6, 4, 23, 2],
      [3, 4, 2],
    ],
    seeds: [1, 2],
    max_tokens: 6,
    logprobs: 1,
    return_token_ids: true,
    ignore_eos: true,
  };
}

/** Tokens and logprobs of two answers. */
async function completion(stage: Stage, model: string): Promise<unknown[]> {
  interface Answer {
    readonly choices: { readonly token_ids: number[]; readonly logprobs: { readonly token_logprobs: number[] } }[];
  }
  const { choices } = await stage.ask<Answer>('/v1/completions', completionBody(model));
  return choices.map(({ token_ids, logprobs }) => [token_ids, logprobs.token_logprobs]);
}

function leastOf(config: ModelConfig, quantize: 'int8' | 'int4' | undefined): number {
  return Number(/at least ([\d.]+)/.exec(tooSmall(config, quantize).message)![1]);
}

function tooSmall(config: ModelConfig, quantize?: 'int8' | 'int4'): MemoryTooSmall {
  try {
    serverMemory(config, { memoryGb: 1e-3, quantize });
  } catch (error) {
    if (error instanceof MemoryTooSmall) return error;
    throw error;
  }
  throw new Error('a thousandth is enough');
}
