/** Models as GGUF files and back: what was written is what was there. */
import assert from 'node:assert/strict';
import { readFileSync, statSync } from 'node:fs';
import path from 'node:path';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { readGguf, writeGguf, type ModelFolder, parseModelConfig } from '../../engine/index.ts';
import { packers } from '../../engine/gguf/pack.ts';
import { assembleModel } from '../../engine/model/model-folder.ts';
import { randomParameters, temporaryFolder } from './models.ts';

const data = fileURLToPath(new URL('../data/gguf/', import.meta.url));
const tiny = await readGguf(path.join(data, 'tiny-llama.gguf'));

const files = (change: object): Record<string, string> => ({
  ...tiny.files,
  'config.json': JSON.stringify({ ...(JSON.parse(tiny.files['config.json']!) as object), ...change }),
});

/** The tiny model in the shape that a config.json says, with random weights. */
function modelOf(change: object, texts: Record<string, string> = {}): ModelFolder {
  const all = { ...files(change), ...texts };
  return assembleModel(all, randomParameters(parseModelConfig(all['config.json']!, 'test'), 3));
}

const shapes: readonly [string, object][] = [
  ['Llama, tied', {}],
  ['Llama, an output layer of its own, biases', { tie_word_embeddings: false, attention_bias: true, mlp_bias: true }],
  [
    'Llama, heads that are wider than the hidden size',
    { head_dim: 32, num_attention_heads: 3, num_key_value_heads: 1 },
  ],
  [
    'Llama 3.1, whose rotary factors are a tensor',
    {
      rope_theta: 500_000,
      rope_scaling: {
        rope_type: 'llama3',
        factor: 8,
        low_freq_factor: 1,
        high_freq_factor: 4,
        original_max_position_embeddings: 64,
      },
    },
  ],
  ['Llama, linearly stretched', { rope_scaling: { type: 'linear', factor: 4 } }],
  [
    'Llama, stretched by YaRN',
    {
      rope_scaling: { rope_type: 'yarn', factor: 4, original_max_position_embeddings: 32 },
    },
  ],
  ['SmolLM3, whose fourth layer is told no positions', { model_type: 'smollm3', num_hidden_layers: 4 }],
  ['Qwen2, with its biases', { model_type: 'qwen2' }],
  [
    'Qwen3, with norms of the heads, and places in the vocabulary that no token has',
    { model_type: 'qwen3', vocab_size: 288 },
  ],
];

describe('import(export(x)) is x', () => {
  for (const [what, change] of shapes) {
    test(what, async (t) => {
      const model = modelOf(change);
      const file = path.join(await temporaryFolder(t), 'model.gguf');
      await writeGguf(model, file, { type: 'f32' });
      const back = await readGguf(file);
      assert.deepEqual(back.config, model.config);
      assert.deepEqual(back.parameters.flat, model.parameters.flat);
      assert.deepEqual(back.tokenizer.encode('Über 7 + 5 = 12, the'), model.tokenizer.encode('Über 7 + 5 = 12, the'));
      const messages = [{ role: 'user', content: 'hi' }];
      assert.deepEqual(back.tokenizer.renderPrompt(messages), model.tokenizer.renderPrompt(messages));
    });
  }

  test('in halves and in blocks of 8 bits, once the weights are such', async (t) => {
    const folder = await temporaryFolder(t);
    for (const type of ['f16', 'q8_0'] as const) {
      const [first, second] = [path.join(folder, `${type}-1.gguf`), path.join(folder, `${type}-2.gguf`)];
      await writeGguf(modelOf({}), first, { type });
      const once = await readGguf(first);
      await writeGguf(once, second, { type });
      const twice = await readGguf(second);
      assert.deepEqual(twice.parameters.flat, once.parameters.flat, type);
      assert.notDeepEqual(once.parameters.flat, modelOf({}).parameters.flat);
    }
    const size = (type: string): number => statSync(path.join(folder, `${type}-1.gguf`)).size;
    assert.ok(size('q8_0') < 0.7 * size('f16'));
  });

  test('whatever way of cutting a text a tokenizer has that is held', async (t) => {
    const file = path.join(await temporaryFolder(t), 'model.gguf');
    const digits = String.raw`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`;
    const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false };
    const llama3 = {
      type: 'Sequence',
      pretokenizers: [
        { type: 'Split', pattern: { Regex: digits }, behavior: 'Isolated', invert: false },
        { ...byteLevel, use_regex: false },
      ],
    };
    for (const [change, ofModel] of [
      [{ pre_tokenizer: llama3 }, { ignore_merges: true }],
      [
        { pre_tokenizer: { ...byteLevel, use_regex: true } },
        {
          merges: [
            ['t', 'h'],
            ['th', 'e'],
            ['Ġ', 'the'],
          ],
        },
      ],
    ]) {
      const model = modelOf({}, withTokenizer(change!, ofModel!));
      await writeGguf(model, file, { type: 'f32' });
      const back = await readGguf(file);
      const text = 'the 12345 mothers, then';
      assert.deepEqual(back.tokenizer.encode(text), model.tokenizer.encode(text));
    }
  });
});

function withTokenizer(change: object, ofModel: object): Record<string, string> {
  const tokenizer = JSON.parse(tiny.files['tokenizer.json']!) as { model: object };
  return { 'tokenizer.json': JSON.stringify({ ...tokenizer, ...change, model: { ...tokenizer.model, ...ofModel } }) };
}

test('the chat template that holds is the one in the file, and with tools the one for them', async (t) => {
  const file = path.join(await temporaryFolder(t), 'model.gguf');
  const model = modelOf(
    {},
    {
      'chat_template.jinja': 'usual{{ messages[0].content }}',
      'additional_chat_templates/tool_use.jinja': 'tools{{ messages[0].content }}',
    },
  );
  await writeGguf(model, file, { type: 'f32' });
  const { tokenizer } = await readGguf(file);
  const messages = [{ role: 'user', content: '!' }];
  assert.equal(tokenizer.renderPrompt(messages).text, 'usual!');
  assert.equal(tokenizer.renderPrompt(messages, { tools: [{}] }).text, 'tools!');
});

test('what GGUF has no name for is refused before a file is there', async (t) => {
  const folder = await temporaryFolder(t);
  const refuses = async (model: ModelFolder, message: RegExp): Promise<void> =>
    assert.rejects(writeGguf(model, path.join(folder, 'no.gguf'), { type: 'f16' }), {
      code: 'ModelUnsupported',
      message,
    });
  await refuses(modelOf({}, withTokenizer({}, { ignore_merges: true })), /"ignore_merges" false/);
  await refuses(
    modelOf({}, withTokenizer({ normalizer: { type: 'Lowercase' } }, {})),
    /a normalizer and a pre_tokenizer of GPT-2/,
  );
  await refuses(modelOf({ vocab_size: 200 }), /token ids below vocab_size 200, got \d+/);
  await refuses(
    modelOf({ model_type: 'smollm3', no_rope_layers: [0, 1] }),
    /every 4th, .* got "smollm3" with other layers/,
  );
  await refuses(
    modelOf({ model_type: 'gemma3_text', query_pre_attn_scalar: 99 }),
    /query_pre_attn_scalar 16, .* got 99/,
  );
  await refuses(modelOf({ model_type: 'qwen3_moe', num_experts: 2, num_experts_per_tok: 1 }), /norm_topk_prob true/);
  await refuses(modelOf({}, withTokenizer({}, { byte_fallback: true })), /blanks as SentencePiece has them/);
  const huge = modelOf({});
  huge.parameters.view('model.layers.0.mlp.up_proj.weight')[5] = 70_000;
  await refuses(huge, /weights up to 65504, .* got 70000. Take the type f32/);
  assert.throws(() => statSync(path.join(folder, 'no.gguf')), { code: 'ENOENT' });
});

test('blocks of 8 bits are packed to the bytes that gguf gives', () => {
  const { quantized } = JSON.parse(readFileSync(path.join(data, 'blocks.json'), 'utf8')) as {
    readonly quantized: { readonly values: string; readonly packed: string };
  };
  const values = new Float32Array(Uint8Array.from(Buffer.from(quantized.values, 'base64')).buffer);
  assert.deepEqual(Buffer.from(packers.q8_0.pack(values)), Buffer.from(quantized.packed, 'base64'));
});
