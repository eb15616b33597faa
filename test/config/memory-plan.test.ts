import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { knownModel } from '../../config/known-models.ts';
import {
  keyValueBytes,
  planServerMemory,
  planTrainerMemory,
  remediesFor,
  type TrainerSetting,
} from '../../config/memory-plan.ts';
import { loraParameterCount, type ModelShape, parameterCountOf, shapeOfConfig } from '../../config/model-shape.ts';

const gib = 2 ** 30;
const allLayers = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'];

function shapeNamed(id: string): ModelShape {
  const known = knownModel(id);
  assert(known, id);
  return known.shape;
}

/** As "Training & Evaluation with Prime-RL" sets it up: LoRA of rank 32 on one GPU, prime-rl's defaults otherwise. */
const documented = (id: string, change: Partial<TrainerSetting> = {}): TrainerSetting => ({
  shape: shapeNamed(id),
  lora: { r: 32, targetModules: allLayers },
  seqLen: 16_384,
  microBatchSize: 1,
  gpuCount: 1,
  optimizationType: 'float32',
  checkpointEvery: 1,
  cpuOffload: false,
  optimizerOffload: false,
  headTokens: null,
  ...change,
});

describe('the shapes of known models', () => {
  // As their model cards and safetensors have them.
  const counts = {
    'Qwen/Qwen2.5-0.5B-Instruct': 494_032_768,
    'Qwen/Qwen2.5-7B-Instruct': 7_615_616_512,
    'Qwen/Qwen3-0.6B': 596_049_920,
    'Qwen/Qwen3-4B-Instruct-2507': 4_022_468_096,
    'Qwen/Qwen3-8B': 8_190_735_360,
    'Qwen/Qwen3-30B-A3B-Instruct-2507': 30_532_122_624,
    'Qwen/Qwen3-30B-Thinking-2507': 30_532_122_624,
    'Qwen/Qwen3-235B-A22B': 235_093_634_560,
    'meta-llama/Llama-3.1-8B-Instruct': 8_030_261_248,
    'meta-llama/Llama-3.2-1B': 1_235_814_400,
  };
  for (const [id, count] of Object.entries(counts)) {
    test(`${id} has ${count} parameters`, () => assert.equal(parameterCountOf(shapeNamed(id)), count));
  }

  test('a model that is quantized, or that nobody told us of, is unknown', () => {
    for (const id of ['Qwen/Qwen3-8B-AWQ', 'Qwen/Qwen3-8B-FP8', 'acme/some-model', 'Qwen/Qwen3', 'x/constructor']) {
      assert.equal(knownModel(id), undefined, id);
    }
  });

  test('a config.json tells the same, and says what is missing in it', () => {
    const raw = {
      model_type: 'qwen3_moe',
      vocab_size: 151_936,
      hidden_size: 2048,
      num_hidden_layers: 48,
      num_attention_heads: 32,
      num_key_value_heads: 4,
      head_dim: 128,
      intermediate_size: 6144,
      num_experts: 128,
      num_experts_per_tok: 8,
      moe_intermediate_size: 768,
    };
    const shape = shapeOfConfig(raw);
    assert.deepEqual(shape, shapeNamed('Qwen/Qwen3-30B-A3B'));
    const incomplete = shapeOfConfig({ ...raw, hidden_size: undefined });
    assert(typeof incomplete === 'string' && incomplete.includes('hidden_size'));
  });

  test('LoRA adds r (inputs + outputs) to each layer it adapts', () => {
    const shape = shapeNamed('Qwen/Qwen3-4B');
    const { layerCount, hiddenSize, headCount, headSize } = shape;
    const queries = loraParameterCount(shape, { r: 8, targetModules: ['q_proj'] });
    assert.equal(queries, layerCount * 8 * (hiddenSize + headCount * headSize));
  });
});

describe("a trainer's memory", () => {
  // documents/003, "GPU Memory Guidelines": a 7-8B model with LoRA on 80 GB GPUs, peak as PyTorch counts it, in GiB.
  const table = [
    { checkpointEvery: 1, seqLen: 16_384, peak: 65 },
    { checkpointEvery: 1, seqLen: 8192, peak: 45 },
  ];
  for (const id of ['Qwen/Qwen2.5-7B-Instruct', 'Qwen/Qwen3-8B', 'meta-llama/Llama-3.1-8B']) {
    for (const { peak, ...setting } of table) {
      test(`${id} with LoRA and ac at ${setting.seqLen} tokens takes about ${peak} GB`, () => {
        const estimated = planTrainerMemory(documented(id, setting)).totalBytes / gib;
        assert(Math.abs(estimated / peak - 1) < 0.25, `${estimated.toFixed(1)} GiB`);
      });
    }
    test(`${id} with LoRA and without ac at 16384 tokens takes more than 80 GB`, () => {
      assert(planTrainerMemory(documented(id, { checkpointEvery: null })).totalBytes > 80 * gib);
    });
  }

  const terms = (setting: TrainerSetting) =>
    Object.fromEntries(planTrainerMemory(setting).terms.map(({ what, bytes }) => [what, bytes]));

  test('all weights take 4 bytes, their gradients 4 and their moments 8, split among the GPUs', () => {
    const setting = documented('Qwen/Qwen3-4B', { lora: null, gpuCount: 4 });
    const count = parameterCountOf(setting.shape);
    const { weights, gradients, moments, adapters } = terms(setting);
    assert.deepEqual([weights, gradients, moments, adapters], [count, count, 2 * count, undefined]);
    const half = terms({ ...setting, optimizationType: 'bfloat16' });
    assert.deepEqual([half['weights'], half['moments']], [count / 2, 2 * count]);
  });

  test('the total is the sum of its terms, and what is offloaded is in the machine instead', () => {
    const setting = documented('Qwen/Qwen3-4B');
    const [here, away] = [planTrainerMemory(setting), planTrainerMemory({ ...setting, cpuOffload: true })];
    assert.equal(here.totalBytes, here.terms.reduce((sum, { bytes }) => sum + bytes, 0)); // prettier-ignore
    assert.equal(here.hostBytes, 0);
    assert.equal(Math.round(here.totalBytes - away.totalBytes), Math.round(away.hostBytes));
    const moments = planTrainerMemory({ ...setting, optimizerOffload: true });
    assert.equal(moments.hostBytes, terms(setting)['moments']);
  });

  test('the fewer layers are computed again, the more it takes', () => {
    const at = (checkpointEvery: number | null) => planTrainerMemory(documented('Qwen/Qwen3-8B', { checkpointEvery }));
    const sizes = [1, 2, 4, null].map((every) => at(every).totalBytes);
    assert.deepEqual(sizes, sizes.toSorted((a, b) => a - b)); // prettier-ignore
  });

  test("the remedies are the document's four, in its order, without those that are taken", () => {
    const setting = documented('Qwen/Qwen2.5-7B-Instruct', { checkpointEvery: null });
    const changes = remediesFor(setting).map(({ change }) => change);
    const order = [/\[trainer\.model\.ac\] freq = 1/, /seq_len = 8192/, /2 trainer GPUs/, /fsdp_cpu_offload = true/];
    assert.equal(changes.length, 4);
    for (const [i, pattern] of order.entries()) assert.match(changes[i]!, pattern);
    const taken = remediesFor({ ...setting, checkpointEvery: 1, cpuOffload: true }).map(({ change }) => change);
    assert.deepEqual(taken, changes.slice(1, 3));
  });

  test('a remedy saves what it says', () => {
    const setting = documented('Qwen/Qwen2.5-7B-Instruct', { checkpointEvery: null });
    const now = planTrainerMemory(setting).totalBytes;
    const [ac, shorter] = remediesFor(setting);
    assert.equal(ac!.savesBytes, now - planTrainerMemory({ ...setting, checkpointEvery: 1 }).totalBytes);
    const both = planTrainerMemory({ ...setting, checkpointEvery: 1, seqLen: 8192 }).totalBytes;
    assert.deepEqual([ac!.totalBytes, shorter!.totalBytes], [now - ac!.savesBytes, both]);
  });
});

describe("a policy server's memory", () => {
  const shape = shapeNamed('Qwen/Qwen2.5-7B-Instruct');
  const server = { shape, weightType: 'bfloat16', tensorParallel: 1, gpuBytes: 80 * gib, maxModelLen: 16_384 } as const;

  test('keys and values of a token: two, of every layer and head', () => {
    assert.equal(keyValueBytes(shape, 2), 2 * 28 * 4 * 128 * 2);
  });

  test('what its share of the GPU leaves beside the weights is for keys and values', () => {
    const plan = planServerMemory({ ...server, gpuMemoryUtilization: 0.6 });
    assert.equal(plan.weightBytes, 2 * parameterCountOf(shape));
    assert.equal(plan.claimedBytes, 48 * gib);
    assert.equal(plan.longestSequences, Math.floor(plan.keyValueTokens / 16_384));
    assert(plan.longestSequences > 30 && plan.longestSequences < 45, String(plan.longestSequences));
  });

  test('weights that do not fit leave nothing', () => {
    const plan = planServerMemory({ ...server, gpuMemoryUtilization: 0.1 });
    assert(plan.keyValueBytes < 0);
    assert.equal(plan.keyValueTokens, 0);
  });
});
