import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { knownModel } from '../../config/models/known-models.ts';
import {
  keyValueBytes,
  loraParameterCount,
  type ModelShape,
  parameterCountOf,
  shapeOfConfig,
} from '../../core/model-shape.ts';

function shapeNamed(id: string): ModelShape {
  const known = knownModel(id);
  assert(known, id);
  return known.shape;
}

describe('the shapes of known models', () => {
  // From their model cards and safetensors.
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

test('keys and values of a token: two, of every layer and head', () => {
  assert.equal(keyValueBytes(shapeNamed('Qwen/Qwen2.5-7B-Instruct'), 2), 2 * 28 * 4 * 128 * 2);
});
