import { RatchetError } from '../../core/errors.ts';
import type { TextFiles } from '../model/text-files.ts';
import { damagedFile } from '../model/safetensors.ts';
import { cuts, ignoreMerges } from './cuts.ts';
import { architectures, type GgufArchitecture } from './families.ts';
import type { GgufHeader, GgufValue } from './header.ts';
import { scalingOfFactors } from './rotary-factors.ts';

/**
 * A GGUF file's values and names in the terms of a Hugging Face folder: what llama.cpp's `convert_hf_to_gguf.py` made of such a folder, the other
 * way round.
 */

/** Kinds of tokens, of `tokenizer.ggml.token_type`; the last is a place in the vocabulary that no text has. */
const [controlToken, ownToken, noToken] = [3, 4, 5];

/** The texts of the folder. `rotary`: `rope_freqs.weight`, where there is one. Throws `ModelUnsupported` for what the engine does not hold. */
export function textsOfGguf(header: GgufHeader, where: string, rotary: Float32Array | null): TextFiles {
  const file = new GgufFile(header, where);
  const withTools = file.maybeText('tokenizer.chat_template.tool_use');
  return {
    'config.json': json(configOf(file, rotary)),
    'generation_config.json': json({
      bos_token_id: file.id('bos'),
      eos_token_id: file.ends,
      pad_token_id: file.id('padding'),
    }),
    'tokenizer.json': json(tokenizerOf(file)),
    'tokenizer_config.json': json(tokenizerConfigOf(file)),
    ...(withTools === null ? {} : { 'additional_chat_templates/tool_use.jinja': withTools }),
  };
}

/** Values by their names, each as what it has to be. */
class GgufFile {
  readonly #values: ReadonlyMap<string, GgufValue>;
  readonly #where: string;
  readonly tensors: GgufHeader['tensors'];

  constructor({ values, tensors }: GgufHeader, where: string) {
    this.#values = values;
    this.tensors = tensors;
    this.#where = where;
  }

  get architecture(): GgufArchitecture {
    const name = this.text('general.architecture');
    const known = architectures.find((one) => one.name === name);
    if (known) return known;
    throw this.unsupported(`one of the families ${architectures.map((one) => one.name).join(', ')}`, `"${name}"`);
  }

  get headCount(): number {
    return this.number('attention.head_count');
  }

  get keyValueHeadCount(): number {
    return this.maybe('attention.head_count_kv') ?? this.headCount;
  }

  get tokens(): readonly string[] {
    return this.list('tokenizer.ggml.tokens', 'string');
  }

  /** Of the ends of a text, of a turn, of a message: one or several. */
  get ends(): number | readonly number[] | null {
    const ids = [...new Set(['eos', 'eot', 'eom'].flatMap((name) => this.id(name) ?? []))];
    return ids.length > 1 ? ids : (ids[0] ?? null);
  }

  id(name: string): number | null {
    const id = this.#values.get(`tokenizer.ggml.${name}_token_id`);
    return typeof id === 'number' ? id : null;
  }

  token(name: string): string | null {
    const id = this.id(name);
    return id === null ? null : (this.tokens[id] ?? null);
  }

  /** Of its family: `llama.block_count`. */
  number(name: string): number {
    const value = this.maybe(name);
    if (value === null) throw damagedFile(this.#where, `a number ${this.architecture.name}.${name}`, 'none');
    return value;
  }

  maybe(name: string): number | null {
    const value = this.#values.get(`${this.architecture.name}.${name}`);
    return typeof value === 'number' ? value : null;
  }

  text(name: string): string {
    const value = this.maybeText(name);
    if (value === null) throw damagedFile(this.#where, `a text ${name}`, 'none');
    return value;
  }

  maybeText(name: string): string | null {
    const value = this.#values.get(name);
    return typeof value === 'string' ? value : null;
  }

  isTrue(name: string): boolean {
    return this.#values.get(name) === true;
  }

  list(name: string, of: 'string'): readonly string[];
  list(name: string, of: 'number'): readonly number[];
  list(name: string, of: 'string' | 'number'): readonly unknown[] {
    const value = this.#values.get(name);
    if (Array.isArray(value) && value.every((one) => typeof one === of)) return value;
    throw damagedFile(this.#where, `a list ${name} of ${of}s`, typeof value);
  }

  unsupported(expected: string, received: string): RatchetError {
    const instead = 'The same model as a Hugging Face folder may say it in a way that is held.';
    return new RatchetError('ModelUnsupported', `${this.#where}: expected ${expected}, got ${received}. ${instead}`);
  }
}

function configOf(file: GgufFile, rotary: Float32Array | null): Record<string, unknown> {
  const { modelType, className } = file.architecture;
  const hidden = file.number('embedding_length');
  const bias = file.tensors.has('blk.0.attn_q.bias');
  const ropeTheta = shortest(file.maybe('rope.freq_base') ?? 10_000);
  const headSize = file.maybe('attention.key_length') ?? file.maybe('rope.dimension_count') ?? hidden / file.headCount;
  return {
    architectures: [className],
    model_type: modelType,
    vocab_size: file.tensors.get('token_embd.weight')?.shape[0] ?? file.tokens.length,
    hidden_size: hidden,
    intermediate_size: file.number('feed_forward_length'),
    num_hidden_layers: file.number('block_count'),
    num_attention_heads: file.headCount,
    num_key_value_heads: file.keyValueHeadCount,
    head_dim: headSize,
    hidden_act: 'silu',
    max_position_embeddings: file.number('context_length'),
    rms_norm_eps: shortest(file.number('attention.layer_norm_rms_epsilon')),
    rope_theta: ropeTheta,
    ...ropeScalingOf(file, { headSize, ropeTheta, rotary }),
    tie_word_embeddings: !file.tensors.has('output.weight'),
    ...(['llama', 'smollm3'].includes(modelType)
      ? { attention_bias: bias, mlp_bias: file.tensors.has('blk.0.ffn_gate.bias') }
      : {}),
    bos_token_id: file.id('bos'),
    eos_token_id: file.ends,
    pad_token_id: file.id('padding'),
  };
}

function ropeScalingOf(
  file: GgufFile,
  { rotary, ...shape }: { headSize: number; ropeTheta: number; rotary: Float32Array | null },
): Record<string, unknown> {
  if (rotary !== null) {
    const scaling = scalingOfFactors(rotary, shape);
    if (scaling === null) throw file.unsupported('rope_freqs.weight as Llama 3 has it', 'other factors');
    return {
      rope_scaling: {
        rope_type: scaling.type,
        factor: scaling.factor,
        low_freq_factor: scaling.lowFrequencyFactor,
        high_freq_factor: scaling.highFrequencyFactor,
        original_max_position_embeddings: scaling.originalPositions,
      },
    };
  }
  const type = file.maybeText(`${file.architecture.name}.rope.scaling.type`) ?? 'none';
  if (type === 'none') return {};
  const factor = (): number => shortest(file.number('rope.scaling.factor'));
  if (type === 'linear') return { rope_scaling: { type, factor: factor() } };
  const original = file.maybe('rope.scaling.original_context_length');
  if (type === 'yarn' && original !== null)
    return { rope_scaling: { rope_type: type, factor: factor(), original_max_position_embeddings: original } };
  throw file.unsupported('rope.scaling.type "none", "linear" or "yarn" with an original_context_length', `"${type}"`);
}

function tokenizerOf(file: GgufFile): Record<string, unknown> {
  const model = file.text('tokenizer.ggml.model');
  if (model !== 'gpt2') throw file.unsupported('tokenizer.ggml.model "gpt2" (byte-level BPE)', `"${model}"`);
  const pre = file.maybeText('tokenizer.ggml.pre') ?? 'default';
  const cut = Object.hasOwn(cuts, pre) ? cuts[pre] : undefined;
  if (!cut) throw file.unsupported(`tokenizer.ggml.pre as one of ${Object.keys(cuts).join(', ')}`, `"${pre}"`);
  const types = file.list('tokenizer.ggml.token_type', 'number');
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: file.tokens.flatMap((content, id) => {
      const isAdded = types[id] === controlToken || types[id] === ownToken;
      const as = { single_word: false, lstrip: false, rstrip: false, normalized: false };
      return isAdded ? [{ id, content, ...as, special: types[id] === controlToken }] : [];
    }),
    normalizer: cut.normalizer ?? null,
    pre_tokenizer: { type: 'Sequence', pretokenizers: cut.pretokenizers },
    post_processor: file.isTrue('tokenizer.ggml.add_bos_token') ? beginningWith(file) : null,
    decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: false,
      byte_fallback: false,
      ignore_merges: ignoreMerges.has(pre),
      vocab: Object.fromEntries(file.tokens.flatMap((token, id) => (types[id] === noToken ? [] : [[token, id]]))),
      merges: file.list('tokenizer.ggml.merges', 'string'),
    },
  };
}

function beginningWith(file: GgufFile): unknown {
  const [token, id] = [file.token('bos'), file.id('bos')];
  if (token === null) throw file.unsupported('the token that texts begin with', 'add_bos_token without one');
  const sequence = { Sequence: { id: 'A', type_id: 0 } };
  return {
    type: 'TemplateProcessing',
    single: [{ SpecialToken: { id: token, type_id: 0 } }, sequence],
    pair: [{ SpecialToken: { id: token, type_id: 0 } }, sequence, { Sequence: { id: 'B', type_id: 1 } }],
    special_tokens: { [token]: { id: token, ids: [id], tokens: [token] } },
  };
}

function tokenizerConfigOf(file: GgufFile): Record<string, unknown> {
  const template = file.maybeText('tokenizer.chat_template');
  return {
    tokenizer_class: 'PreTrainedTokenizerFast',
    model_max_length: file.number('context_length'),
    add_bos_token: file.isTrue('tokenizer.ggml.add_bos_token'),
    bos_token: file.token('bos'),
    eos_token: file.token('eos'),
    pad_token: file.token('padding'),
    ...(template === null ? {} : { chat_template: template }),
  };
}

/** A 32-bit float as it was written by hand: 1e-05 and not 9.999999747378752e-06. */
function shortest(value: number): number {
  for (let digits = 1; digits < 10; digits++) {
    const short = Number(value.toPrecision(digits));
    if (Math.fround(short) === Math.fround(value)) return short;
  }
  return value;
}

function json(value: unknown): string {
  return `${JSON.stringify(value, null, 1)}\n`;
}
