import { RatchetError } from '../../core/errors.ts';
import type { TextFiles } from '../model/text-files.ts';
import { damagedFile } from '../model/safetensors.ts';
import { cuts, ignoreMerges } from './cuts.ts';
import { architectures, gemmaFullEvery, gemmaQueryScalar, type GgufArchitecture } from './families.ts';
import type { GgufHeader, GgufValue } from './header.ts';
import { scalingOfFactors } from './rotary-factors.ts';
import { mergesOf, partsOfTokenizer, tokenTypes, uncutPieces } from './sentencepiece.ts';

/**
 * Translates a GGUF file's values and names into a Hugging Face folder: the inverse of llama.cpp's
 * `convert_hf_to_gguf.py`.
 */

/**
 * The texts of the folder. `rotary`: `rope_freqs.weight`, if the file has it. Throws `ModelUnsupported` for models that
 * the engine does not support.
 */
export function textsOfGguf(header: GgufHeader, where: string, rotary: Float32Array | null): TextFiles {
  const file = new GgufFile(header, where);
  const parts = Number(header.values.get('split.count') ?? 1);
  if (parts > 1) throw file.unsupported('one file, as `llama-gguf-split --merge` makes it', `the first of ${parts}`);
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

/** Values by name, checked for their types. */
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

  /** Pieces with scores, and not merges of bytes. */
  get isSentencePiece(): boolean {
    return this.text('tokenizer.ggml.model') === 'llama';
  }

  /** Whether every text begins with the token for it. */
  get addsBos(): boolean {
    return this.flag('tokenizer.ggml.add_bos_token', this.isSentencePiece);
  }

  /** Token ids that end a text, a turn or a message. */
  get ends(): number | readonly number[] | null {
    const ids = [...new Set(['eos', 'eot', 'eom'].flatMap((name) => this.id(name) ?? []))];
    return ids.length > 1 ? ids : (ids[0] ?? null);
  }

  id(name: string): number | null {
    const id = this.#values.get(`tokenizer.ggml.${name}_token_id`);
    if (typeof id === 'number') return id;
    return this.isSentencePiece ? (sentencePieceIds[name] ?? null) : null;
  }

  token(name: string): string | null {
    const id = this.id(name);
    return id === null ? null : (this.tokens[id] ?? null);
  }

  /** A value under the architecture's prefix: `llama.block_count`. */
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

  flag(name: string, otherwise: boolean): boolean {
    const value = this.#values.get(name);
    return typeof value === 'boolean' ? value : otherwise;
  }

  /** A list under the architecture's prefix; null when it is missing or no list. */
  maybeList(name: string): readonly unknown[] | null {
    const value = this.#values.get(`${this.architecture.name}.${name}`);
    return Array.isArray(value) ? value : null;
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

/** llama.cpp's defaults (`llama_vocab::impl` of src/llama-vocab.cpp). */
const sentencePieceIds: Readonly<Record<string, number>> = { bos: 1, eos: 2, unknown: 0 };

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
    ...(modelType === 'gemma3_text' ? gemmaValues(file, headSize) : { hidden_act: 'silu' }),
    ...expertValues(file),
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

/** Gemma 3's attention: windows in all layers but every sixth, with a rotary embedding of their own. */
function gemmaValues(file: GgufFile, headSize: number): Record<string, unknown> {
  const capped = file.maybe('final_logit_softcapping');
  if (capped !== null) throw file.unsupported('no final_logit_softcapping', String(capped));
  const layerCount = file.number('block_count');
  const window = file.maybe('attention.sliding_window');
  const every = file.maybe('attention.sliding_window_pattern') ?? gemmaFullEvery;
  const stated = file.maybeList('attention.sliding_window_pattern');
  const isLocal = (layer: number): boolean => (stated ? stated[layer] === true : (layer + 1) % every !== 0);
  const types = Array.from({ length: Math.min(layerCount, layersMax) }, (_, layer) =>
    window !== null && isLocal(layer) ? 'sliding_attention' : 'full_attention',
  );
  const shape = { layerCount, hiddenSize: file.number('embedding_length'), headCount: file.headCount, headSize };
  return {
    hidden_activation: 'gelu_pytorch_tanh',
    query_pre_attn_scalar: gemmaQueryScalar(shape),
    rope_local_base_freq: shortest(file.maybe('rope.freq_base_swa') ?? 10_000),
    ...(window === null ? {} : { sliding_window: window }),
    layer_types: types,
  };
}

/** A file may claim any number; one with more layers than these types is refused. */
const layersMax = 4096;

function expertValues(file: GgufFile): Record<string, unknown> {
  const count = file.maybe('expert_count') ?? 0;
  if (file.architecture.modelType !== 'qwen3_moe') {
    if (count > 0) throw file.unsupported(`"${file.architecture.name}" without experts`, `${count} experts`);
    return {};
  }
  const perToken = file.number('expert_used_count');
  return {
    num_experts: count,
    num_experts_per_tok: perToken,
    moe_intermediate_size:
      file.maybe('expert_feed_forward_length') ?? Math.floor(file.number('feed_forward_length') / perToken),
    norm_topk_prob: true,
    decoder_sparse_step: 1,
    mlp_only_layers: [],
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
  const types = file.list('tokenizer.ggml.token_type', 'number');
  const uncut = file.isSentencePiece ? uncutPieces({ tokens: file.tokens, types }) : new Set();
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: file.tokens.flatMap((content, id) => {
      const type = types[id];
      const special = type === tokenTypes.control || type === tokenTypes.unknown;
      if (!special && type !== tokenTypes.own && !uncut.has(id)) return [];
      return [{ id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special }];
    }),
    post_processor: file.addsBos ? beginningWith(file) : null,
    ...(file.isSentencePiece ? sentencePieceOf(file, types) : byteLevelOf(file, types)),
  };
}

function sentencePieceOf(file: GgufFile, types: readonly number[]): Record<string, unknown> {
  const { tokens } = file;
  const scores = file.list('tokenizer.ggml.scores', 'number');
  return {
    ...partsOfTokenizer(file.flag('tokenizer.ggml.add_space_prefix', true)),
    pre_tokenizer: null,
    model: {
      ...defaultModel,
      unk_token: file.token('unknown'),
      fuse_unk: true,
      byte_fallback: types.includes(tokenTypes.byte),
      ignore_merges: false,
      vocab: vocabularyOf(tokens, types),
      merges: mergesOf({ tokens, scores, types }),
    },
  };
}

function byteLevelOf(file: GgufFile, types: readonly number[]): Record<string, unknown> {
  const model = file.text('tokenizer.ggml.model');
  if (model !== 'gpt2')
    throw file.unsupported('tokenizer.ggml.model "gpt2" (byte-level BPE) or "llama" (SentencePiece)', `"${model}"`);
  const pre = file.maybeText('tokenizer.ggml.pre') ?? 'default';
  const cut = Object.hasOwn(cuts, pre) ? cuts[pre] : undefined;
  if (!cut) throw file.unsupported(`tokenizer.ggml.pre as one of ${Object.keys(cuts).join(', ')}`, `"${pre}"`);
  return {
    normalizer: cut.normalizer ?? null,
    pre_tokenizer: { type: 'Sequence', pretokenizers: cut.pretokenizers },
    decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: {
      ...defaultModel,
      unk_token: null,
      fuse_unk: false,
      byte_fallback: false,
      ignore_merges: ignoreMerges.has(pre),
      vocab: vocabularyOf(file.tokens, types),
      merges: file.list('tokenizer.ggml.merges', 'string'),
    },
  };
}

const defaultModel = { type: 'BPE', dropout: null, continuing_subword_prefix: null, end_of_word_suffix: null };

const vocabularyOf = (tokens: readonly string[], types: readonly number[]): Record<string, number> =>
  Object.fromEntries(tokens.flatMap((token, id) => (types[id] === tokenTypes.unused ? [] : [[token, id]])));

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
    add_bos_token: file.addsBos,
    bos_token: file.token('bos'),
    eos_token: file.token('eos'),
    pad_token: file.token('padding'),
    ...(file.isSentencePiece ? { unk_token: file.token('unknown') } : {}),
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
