import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';
import {
  EngineOptimizer,
  type ModelConfig,
  Parameters,
  parseModelConfig,
  Sampler,
  type SequenceRequest,
  saveModelFolder,
} from '../../engine/index.ts';
import { loadParameters } from '../../engine/model/model-folder.ts';
import {
  type Golden,
  goldenFolder,
  goldenNames,
  logprobOf,
  readConfig,
  readGolden,
  relativeDifference,
  trainGraphLogits,
} from './golden/read-golden.ts';
import { preset, temporaryFolder } from './models.ts';

for (const name of goldenNames) {
  test(`${name}: logits are transformers'`, async () => {
    const parameters = await loadParameters(goldenFolder(name));
    const golden = await readGolden(goldenFolder(name));
    const difference = relativeDifference(await trainGraphLogits(parameters, golden.tokenIds), golden.logits);
    assert.ok(difference <= 1e-5, `relative difference ${difference}`);
  });

  test(`${name}: the score graph and greedy decoding agree with transformers`, async (t) => {
    const parameters = await loadParameters(goldenFolder(name));
    const golden = await readGolden(goldenFolder(name));
    await requireScoresAgree(t, { parameters, golden, config: await readConfig(name) });
    await requireGreedyAgrees(parameters, golden);
  });
}

interface GoldenModel {
  readonly parameters: Parameters;
  readonly golden: Golden;
  readonly config: string;
}

async function requireScoresAgree(t: TestContext, { parameters, golden, config }: GoldenModel): Promise<void> {
  const folder = await temporaryFolder(t);
  await saveModelFolder({ files: { ...preset().files, 'config.json': config }, parameters }, folder);
  const trainer = await EngineOptimizer.open(folder, { threads: 1 });
  const { tokenIds } = golden;
  const lossMask = tokenIds.map((_, i) => Math.min(i, 1));
  const [logprobs] = await trainer.forwardLogprobs([{ tokenIds, lossMask }], { temperature: 1 });
  await trainer.close();
  for (let t = 1; t < tokenIds.length; t++) requireClose(logprobs![t]!, logprobOf(golden, t - 1, tokenIds[t]!));
}

async function requireGreedyAgrees(parameters: Parameters, golden: Golden): Promise<void> {
  const sampler = await Sampler.open(parameters.config, { threads: 1 });
  const { tokenIds, promptLength } = golden;
  const request = (length: number): SequenceRequest => ({
    promptTokenIds: tokenIds.slice(0, length),
    maxTokens: tokenIds.length - length,
    temperature: 0,
    seed: 0,
    stopTokenIds: [],
  });
  const lengths = [promptLength, promptLength + 20];
  const results = await sampler.generate(parameters, lengths.map(request));
  await sampler.release();
  results.forEach((result, row) => {
    assert.deepEqual(result.tokenIds, tokenIds.slice(lengths[row]));
    result.logprobs.forEach((logprob, t) => {
      const position = lengths[row]! + t;
      requireClose(logprob, logprobOf(golden, position - 1, tokenIds[position]!));
    });
  });
}

function requireClose(actual: number, expected: number): void {
  assert.ok(Math.abs(actual - expected) <= 1e-4 * Math.max(1, Math.abs(expected)), `${actual} against ${expected}`);
}

const everything: ModelConfig['attention'] = [{ window: null, rotary: 'global' }];
const readings: readonly [string, string, (config: ModelConfig) => ModelConfig][] = [
  ['mistral-window', 'sliding_window', (config) => ({ ...config, attention: everything })],
  ['gemma3', 'layer_types', (config) => ({ ...config, attention: everything })],
  ['gemma3', 'the embedding scale', (config) => ({ ...config, embeddingScale: 1 })],
  ['gemma3', 'query_pre_attn_scalar', (config) => ({ ...config, attentionScale: 1 / 4 })],
  ['smollm3', 'no_rope_layers', (config) => ({ ...config, attention: everything })],
  ['qwen2-yarn', 'rope_type yarn', (config) => ({ ...config, ropeScaling: null })],
  [
    'qwen3-moe',
    'norm_topk_prob',
    ({ experts, ...config }) => ({ ...config, experts: { ...experts!, areNormalized: false } }),
  ],
  ['llama3-scaled', 'rope_type llama3', (config) => ({ ...config, ropeScaling: null })],
  ['llama-biased-linear', 'rope_type linear', (config) => ({ ...config, ropeScaling: null })],
  ['llama-plain', 'rope_theta', (config) => ({ ...config, ropeTheta: 5e3 })],
];
for (const [name, what, misread] of readings) {
  test(`${name}: logits move when ${what} is misread`, async () => {
    const right = await loadParameters(goldenFolder(name));
    const wrong = new Parameters(misread(right.config), right.flat);
    const golden = await readGolden(goldenFolder(name));
    assert.ok(relativeDifference(await trainGraphLogits(wrong, golden.tokenIds), golden.logits) > 0.01);
  });
}

test('config.json says which norms and biases a family has', async () => {
  const shapes = await Promise.all(
    goldenNames.map(async (name) => {
      const { family, queryKeyNorm, queryKeyValueBias, attentionOutputBias, feedForwardBias, ropeScaling } =
        parseModelConfig(await readConfig(name), name);
      const has = { queryKeyNorm, queryKeyValueBias, attentionOutputBias, feedForwardBias };
      const parts = Object.entries(has).flatMap(([part, isThere]) => (isThere ? [part] : []));
      return [family, ...parts, ropeScaling?.type ?? 'default'].join(' ');
    }),
  );
  assert.deepEqual(shapes, [
    'qwen3 queryKeyNorm default',
    'qwen3 queryKeyNorm default',
    'qwen2 queryKeyValueBias default',
    'qwen2 queryKeyValueBias default',
    'llama llama3',
    'llama default',
    'llama queryKeyValueBias attentionOutputBias feedForwardBias linear',
    'mistral default',
    'gemma3_text queryKeyNorm linear',
    'qwen3_moe queryKeyNorm default',
    'qwen3_moe queryKeyNorm default',
    'smollm3 default',
    'qwen2 queryKeyValueBias yarn',
  ]);
});

test('what the engine cannot compute of a family is refused by name', async () => {
  const config = await readConfig('llama3-scaled');
  const refuses = (change: object, message: RegExp): void => {
    const text = JSON.stringify({ ...(JSON.parse(config) as object), ...change });
    assert.throws(() => parseModelConfig(text, 'config.json'), { code: 'ModelUnsupported', message });
  };
  refuses({ model_type: 'glm4_moe' }, /model_type to be one of "qwen3", "qwen2", "llama", .*, got "glm4_moe"/);
  refuses({ model_type: 'gemma3' }, /model_type to be one of .*"gemma3_text".*, got "gemma3"/);
  const experts = { model_type: 'qwen3_moe', num_experts: 4, moe_intermediate_size: 16 };
  refuses({ ...experts, num_experts_per_tok: 5 }, /num_experts_per_tok up to 4, got 5/);
  refuses({ ...experts, num_experts_per_tok: 2, mlp_only_layers: [1] }, /experts in every layer/);
  refuses({ ...experts, num_experts_per_tok: 2, use_sliding_window: true }, /no sliding window/);
  const gemma = { model_type: 'gemma3_text' };
  refuses({ ...gemma, hidden_activation: 'silu' }, /hidden_activation "gelu_pytorch_tanh", got "silu"/);
  refuses({ ...gemma, final_logit_softcapping: 30 }, /no final_logit_softcapping, got 30/);
  refuses({ ...gemma, use_bidirectional_attention: true }, /use_bidirectional_attention/);
  refuses({ ...gemma, layer_types: ['full_attention'] }, /of 2 layers, got 1/);
  refuses({ ...gemma, layer_types: ['full_attention', 'chunked_attention'] }, /layer_types .*"chunked_attention"/);
  refuses({ model_type: 'smollm3', no_rope_layers: [1] }, /no_rope_layers of 2 layers, got 1/);
  for (const rope_type of ['dynamic', 'longrope', 'proportional']) {
    refuses({ rope_parameters: { rope_type, factor: 2 } }, new RegExp(`rope_type .* got "${rope_type}"`));
    refuses({ rope_parameters: null, rope_scaling: { type: rope_type, factor: 2 } }, new RegExp(`"${rope_type}"`));
  }
  refuses({ rope_parameters: { rope_type: 'llama3', factor: 2 } }, /"low_freq_factor" beside the rope_type "llama3"/);
  refuses(
    { rope_parameters: { rope_type: 'default', partial_rotary_factor: 0.5 } },
    /partial_rotary_factor 1, got 0.5/,
  );
  refuses({ sliding_window: 32 }, /no sliding window, got sliding_window 32/);
  refuses({ model_type: 'qwen2', use_sliding_window: true, sliding_window: 32 }, /no sliding window/);
  refuses({ layer_types: ['full_attention', 'sliding_attention'] }, /layer_types .*"sliding_attention"/);
  refuses({ quantization_config: { bits: 4 } }, /not quantized/);
  refuses({ head_dim: 24 }, /head_dim to be a multiple of 16, got 24/);
});

test('a window that no sequence is longer than is no window', async () => {
  const raw = JSON.parse(await readConfig('mistral-window')) as Record<string, unknown>;
  const windowOf = (change: object): number | null | undefined =>
    parseModelConfig(JSON.stringify({ ...raw, ...change }), 'config.json').attention[0]?.window;
  assert.equal(windowOf({}), 24);
  assert.equal(windowOf({ sliding_window: null }), null);
  assert.equal(windowOf({ sliding_window: 4096 }), null);
  assert.equal(windowOf({ sliding_window: undefined }), null); // 4096, where nothing is said
});

test('what Gemma 3 and SmolLM3 leave out of config.json is what transformers puts in its place', async () => {
  const parse = async (name: string, change: object): Promise<ModelConfig> => {
    const raw = JSON.parse(await readConfig(name)) as Record<string, unknown>;
    return parseModelConfig(JSON.stringify({ ...raw, ...change }), name);
  };
  const rope = { rope_parameters: undefined, rope_theta: 1e6, rope_local_base_freq: 1e4 };
  const gemma = await parse('gemma3', { layer_types: undefined, sliding_window_pattern: 6, ...rope });
  assert.deepEqual(gemma.attention.map(({ rotary }) => rotary).join(' '), 'local local local local local global');
  assert.deepEqual([gemma.ropeTheta, gemma.localRopeTheta, gemma.tiedEmbeddings], [1e6, 1e4, true]);
  const smollm = await parse('smollm3', { no_rope_layers: undefined });
  assert.deepEqual(smollm.attention.map(({ rotary }) => rotary).join(' '), 'global global global none');
});

test('a window that Qwen2.5 carries unused is no window', async () => {
  const config = await readConfig('qwen2-tied');
  const text = JSON.stringify({
    ...(JSON.parse(config) as object),
    sliding_window: 131_072,
    use_sliding_window: false,
  });
  assert.equal(parseModelConfig(text, 'config.json').family, 'qwen2');
});

test('what config.json leaves out is what transformers puts in its place', async () => {
  const parse = async (name: string, gone: string): Promise<ModelConfig> => {
    const raw = JSON.parse(await readConfig(name)) as Record<string, unknown>;
    return parseModelConfig(JSON.stringify({ ...raw, [gone]: undefined }), name);
  };
  assert.equal((await parse('qwen3-tied', 'head_dim')).headSize, 128);
  assert.equal((await parse('qwen2-tied', 'head_dim')).headSize, 16);
  assert.equal((await parse('llama-plain', 'head_dim')).headSize, 16);
  assert.equal((await parse('llama-plain', 'num_key_value_heads')).keyValueHeadCount, 2);
  assert.equal((await parse('llama3-scaled', 'rope_parameters')).ropeTheta, 10_000);
});

test('the older spelling of rotary scaling reads the same', async () => {
  const raw = JSON.parse(await readConfig('llama3-scaled')) as Record<string, object>;
  const { rope_parameters, ...rest } = raw;
  const { rope_theta, ...scaling } = rope_parameters as Record<string, unknown>;
  const old = parseModelConfig(JSON.stringify({ ...rest, rope_theta, rope_scaling: scaling }), 'config.json');
  assert.deepEqual(old, parseModelConfig(JSON.stringify(raw), 'config.json'));
});

test('of both spellings the older one holds unless it is empty, as in transformers', async () => {
  const raw = JSON.parse(await readConfig('llama3-scaled')) as Record<string, unknown>;
  const parse = (rope_scaling: object): ModelConfig =>
    parseModelConfig(JSON.stringify({ ...raw, rope_scaling }), 'config.json');
  assert.deepEqual(parse({}).ropeScaling?.type, 'llama3');
  assert.deepEqual(parse({ type: 'linear', factor: 2 }).ropeScaling, { type: 'linear', factor: 2 });
  assert.throws(() => parse({ type: 'dynamic', factor: 2 }), /rope_type .* got "dynamic"/);
});
