import { RatchetError } from '../../core/errors.ts';
import { randomStream } from '../../core/random.ts';
import { parseModelConfig } from './config.ts';
import { assembleModel, loadModelFolder, type ModelFolder } from './model-folder.ts';
import { Parameters, type ParameterSpec } from './parameters.ts';

/** Models of ours that need no download: a config, a tokenizer and random weights from a seed. */
const presets: Readonly<Record<string, () => Record<string, string>>> = {
  'preset:reverse-text-0.2m': reverseTextFiles,
};

/** Opens a folder of Hugging Face files, or a preset by its name. The seed speaks to presets only. */
export async function openModel(model: string, options: { seed: number }): Promise<ModelFolder> {
  return model.startsWith('preset:') ? createPreset(model, options) : loadModelFolder(model);
}

/** The same name and seed give the same bits. */
export function createPreset(name: string, { seed }: { seed: number }): ModelFolder {
  const files = presets[name]?.();
  if (!files) {
    const known = Object.keys(presets).join(', ');
    throw new RatchetError('ModelUnsupported', `There is no model "${name}". Presets: ${known}.`);
  }
  const parameters = new Parameters(parseModelConfig(files['config.json'] ?? '', name));
  initializeParameters(parameters, seed);
  return assembleModel(files, parameters);
}

const initialDeviation = 0.05;

/**
 * Norms start at 1, matrices at N(0, 0.05²). The two matrices that write into the residual stream are scaled by
 * 1/sqrt(2 layers), so that its variance does not grow with depth (Radford et al. 2019, GPT-2, §2.3).
 */
function initializeParameters(parameters: Parameters, seed: number): void {
  for (const spec of parameters.layout) {
    const view = parameters.view(spec.name);
    if (spec.shape.length === 1) view.fill(1);
    else fillNormal(view, { seed, name: spec.name, deviation: deviationOf(spec, parameters.config.layerCount) });
  }
}

function deviationOf({ name }: ParameterSpec, layerCount: number): number {
  return /\.(o_proj|down_proj)\./.test(name) ? initialDeviation / Math.sqrt(2 * layerCount) : initialDeviation;
}

/** Box–Muller. */
function fillNormal(
  view: Float32Array,
  { seed, name, deviation }: { seed: number; name: string; deviation: number },
): void {
  const random = randomStream('weights', seed, name);
  for (let i = 0; i < view.length; i++) {
    const radius = Math.sqrt(-2 * Math.log(1 - random()));
    view[i] = deviation * radius * Math.cos(2 * Math.PI * random());
  }
}

/** A 0.2 M parameter model for reversing words. A small rotary base suits its short sequences. */
function reverseTextFiles(): Record<string, string> {
  const json = (value: unknown): string => `${JSON.stringify(value, null, 2)}\n`;
  return {
    'config.json': json(reverseTextConfig),
    'tokenizer.json': json(reverseTextTokenizer()),
    'tokenizer_config.json': json(reverseTextTokenizerConfig),
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

const specialTokens = ['<pad>', '<eos>', '<sep>', '<bos>'];

/** One token per character. What is no letter a–z becomes <pad>. */
function reverseTextTokenizer(): unknown {
  const letters = Array.from({ length: 26 }, (_, i) => String.fromCharCode(97 + i));
  const vocabulary = Object.fromEntries([...specialTokens, ...letters].map((token, id) => [token, id]));
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: specialTokens.map((content, id) => ({
      id,
      content,
      single_word: false,
      lstrip: false,
      rstrip: false,
      normalized: false,
      special: true,
    })),
    normalizer: null,
    pre_tokenizer: { type: 'Split', pattern: { Regex: '.' }, behavior: 'Isolated', invert: false },
    post_processor: null,
    decoder: { type: 'Fuse' },
    model: { type: 'WordLevel', vocab: vocabulary, unk_token: '<pad>' },
  };
}

/** The last user message and what follows it: `<bos>letters<sep>`, then `letters<eos>` per assistant turn. */
const reverseTextTemplate =
  `{%- set state = namespace(last=-1) -%}` +
  `{%- for message in messages -%}{%- if message.role == 'user' -%}{%- set state.last = loop.index0 -%}{%- endif -%}{%- endfor -%}` +
  `{%- for message in messages -%}` +
  `{%- if loop.index0 == state.last -%}{{- '<bos>' + message.content + '<sep>' -}}` +
  `{%- elif loop.index0 > state.last and message.role == 'assistant' -%}{{- message.content + '<eos>' -}}{%- endif -%}` +
  `{%- endfor -%}`;

const reverseTextTokenizerConfig = {
  tokenizer_class: 'PreTrainedTokenizerFast',
  bos_token: '<bos>',
  eos_token: '<eos>',
  pad_token: '<pad>',
  unk_token: '<pad>',
  padding_side: 'left',
  clean_up_tokenization_spaces: false,
  model_max_length: 64,
  chat_template: reverseTextTemplate,
};
