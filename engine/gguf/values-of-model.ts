import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { problemsIn } from '../../core/problems-in.ts';
import type { ModelConfig } from '../model/config.ts';
import { attentionOf } from '../model/families.ts';
import type { ModelFolder } from '../model/model-folder.ts';
import { ignoreMerges, nameOfCut } from './cuts.ts';
import { architectureOf, gemmaFullEvery } from './families.ts';
import { addsBlankOf, isByte, type Pieces, scoresOf, tokenTypes, withBlanks } from './sentencepiece.ts';
import type { TypedValue } from './write-header.ts';

/**
 * The values that llama.cpp's `convert_hf_to_gguf.py` writes for a Hugging Face folder: shape, tokenizer and chat
 * template.
 */
export function valuesOfModel(
  { config, files }: Pick<ModelFolder, 'config' | 'files'>,
  { name, fileType }: { readonly name: string; readonly fileType: number },
): Map<string, TypedValue> {
  return new Map<string, TypedValue>([
    ['general.architecture', { text: architectureOf(config).name }],
    ['general.type', { text: 'model' }],
    ['general.name', { text: name }],
    ['general.file_type', { u32: fileType }],
    ['general.quantization_version', { u32: 2 }],
    ...shapeValues(config, read(files, 'config.json', HuggingFaceConfig)),
    ...tokenizerValues(config, files),
  ]);
}

type Values = readonly (readonly [string, TypedValue])[];
type Texts = ModelFolder['files'];

const HuggingFaceConfig = z.looseObject({
  max_position_embeddings: z.int().positive(),
  sliding_window: z.int().positive().nullish(),
});

function shapeValues(config: ModelConfig, stated: z.infer<typeof HuggingFaceConfig>): Values {
  const { name } = architectureOf(config);
  const { max_position_embeddings: positions } = stated;
  const window = config.family === 'mistral' ? (attentionOf(config, 0).window ?? positions) : positions;
  const values: Values = [
    ['vocab_size', { u32: config.vocabularySize }],
    ['context_length', { u32: Math.min(positions, window) }],
    ['embedding_length', { u32: config.hiddenSize }],
    ['block_count', { u32: config.layerCount }],
    ['feed_forward_length', { u32: config.feedForwardSize }],
    ['attention.head_count', { u32: config.headCount }],
    ['attention.head_count_kv', { u32: config.keyValueHeadCount }],
    ['attention.key_length', { u32: config.headSize }],
    ['attention.value_length', { u32: config.headSize }],
    ['attention.layer_norm_rms_epsilon', { f32: config.normEpsilon }],
    ['rope.dimension_count', { u32: config.headSize }],
    ['rope.freq_base', { f32: config.ropeTheta }],
    ...ropeScalingValues(config),
    ...windowValues(config, stated.sliding_window ?? null),
    ...expertValues(config),
  ];
  return values.map(([key, value]) => [`${name}.${key}`, value]);
}

/** Only Gemma 3 mixes windows with full attention here. */
function windowValues(config: ModelConfig, stated: number | null): Values {
  if (config.family !== 'gemma3_text') return [];
  const isLocal = Array.from({ length: config.layerCount }, (_, i) => attentionOf(config, i).rotary === 'local');
  if (!isLocal.includes(true)) return [];
  const isDefault = isLocal.every((local, i) => local === ((i + 1) % gemmaFullEvery !== 0));
  return [
    ['attention.sliding_window', { u32: stated ?? gemmaWindow }],
    ...(isDefault ? [] : [['attention.sliding_window_pattern', { bools: isLocal }] as const]),
    ...(config.localRopeTheta === 10_000 ? [] : [['rope.freq_base_swa', { f32: config.localRopeTheta }] as const]),
  ];
}

/** Default of `Gemma3TextConfig`. */
const gemmaWindow = 4096;

function expertValues({ experts }: ModelConfig): Values {
  if (experts === null) return [];
  return [
    ['expert_count', { u32: experts.count }],
    ['expert_used_count', { u32: experts.perToken }],
    ['expert_feed_forward_length', { u32: experts.feedForwardSize }],
  ];
}

/**
 * Llama 3's scaling is in a tensor of its own: `rotary-factors.ts`. A file has only YaRN's factor; llama.cpp assumes
 * the rest.
 */
function ropeScalingValues({ ropeScaling }: ModelConfig): Values {
  if (ropeScaling === null || ropeScaling.type === 'llama3') return [];
  const { type, factor } = ropeScaling;
  const values: Values = [
    ['rope.scaling.type', { text: type }],
    ['rope.scaling.factor', { f32: factor }],
  ];
  if (type === 'linear') return values;
  const { betaFast, betaSlow, truncate, attentionFactor, originalPositions } = ropeScaling;
  const isDefault = betaFast === 32 && betaSlow === 1 && truncate;
  if (!isDefault || Math.abs(attentionFactor - (0.1 * Math.log(factor) + 1)) > 1e-6) {
    const received = JSON.stringify({ betaFast, betaSlow, truncate, attentionFactor });
    throw unsupported('config.json', 'YaRN with the beta_fast, beta_slow and attention_factor of its paper', received);
  }
  return [...values, ['rope.scaling.original_context_length', { u32: originalPositions }]];
}

const Token = z.union([z.string(), z.looseObject({ content: z.string() }).transform(({ content }) => content)]);
const Tokenizer = z.looseObject({
  added_tokens: z.array(z.looseObject({ id: z.int(), content: z.string(), special: z.boolean() })).default([]),
  normalizer: z.unknown(),
  pre_tokenizer: z.unknown(),
  post_processor: z.unknown(),
  model: z.looseObject({
    type: z.string(),
    vocab: z.record(z.string(), z.int().min(0)),
    merges: z.array(z.union([z.string(), z.tuple([z.string(), z.string()])])).default([]),
    ignore_merges: z.boolean().nullish(),
    byte_fallback: z.boolean().nullish(),
    unk_token: z.string().nullish(),
  }),
});
type Tokenizer = z.infer<typeof Tokenizer>;
const NamedTemplate = z.looseObject({ name: z.string(), template: z.string() });
const TokenizerConfig = z.looseObject({
  bos_token: Token.nullish(),
  eos_token: Token.nullish(),
  pad_token: Token.nullish(),
  chat_template: z.union([z.string(), z.array(NamedTemplate)]).nullish(),
});

/** Names of the ends of a text, a turn and a message. */
const endNames = ['eos', 'eot', 'eom'] as const;

function tokenizerValues(config: ModelConfig, files: Texts): Values {
  const tokenizer = read(files, 'tokenizer.json', Tokenizer);
  const stated = read(files, 'tokenizer_config.json', TokenizerConfig);
  const known = vocabulary(tokenizer, config);
  const { tokens } = known;
  const ids = new Map(tokens.map((token, id) => [token, id]));
  const idOf = (token: string | null | undefined): number | null => (token == null ? null : (ids.get(token) ?? null));
  const bos = beginsWith(tokenizer.post_processor);
  return [
    ...(tokenizer.model.byte_fallback === true
      ? sentencePieceValues(tokenizer, known)
      : byteLevelValues(tokenizer, known)),
    ...idValue('bos', idOf(bos ?? stated.bos_token)),
    ...endValues(idOf(stated.eos_token), config.endTokenIds),
    ...idValue('padding', idOf(stated.pad_token)),
    ['tokenizer.ggml.add_bos_token', { bool: bos !== null }],
    ['tokenizer.ggml.add_eos_token', { bool: false }],
    ...templateValues(stated, files),
  ];
}

type Vocabulary = Pick<Pieces, 'tokens' | 'types'>;

function byteLevelValues(tokenizer: Tokenizer, { tokens, types }: Vocabulary): Values {
  return [
    ['tokenizer.ggml.model', { text: 'gpt2' }],
    ['tokenizer.ggml.pre', { text: requireCut(tokenizer) }],
    ['tokenizer.ggml.tokens', { texts: tokens }],
    ['tokenizer.ggml.token_type', { i32s: types }],
    ['tokenizer.ggml.merges', { texts: tokenizer.model.merges.map((merge) => [merge].flat().join(' ')) }],
  ];
}

function sentencePieceValues(
  { model, normalizer, pre_tokenizer: preTokenizer, added_tokens: added }: Tokenizer,
  { tokens, types }: Vocabulary,
): Values {
  const addsBlank = addsBlankOf(normalizer, preTokenizer);
  if (addsBlank === null) {
    const received = JSON.stringify({ normalizer, pre_tokenizer: preTokenizer });
    throw unsupported('tokenizer.json', 'blanks as SentencePiece has them', received);
  }
  const isAdded = new Set(added.map(({ id }) => id));
  const kinds = types.map((type, id) => {
    if (tokens[id] === model.unk_token) return tokenTypes.unknown;
    return type === tokenTypes.normal && isByte(tokens[id]!) ? tokenTypes.byte : type;
  });
  const merges = model.merges.map((merge) => {
    const [left = '', right = ''] = typeof merge === 'string' ? merge.split(' ') : merge;
    return [left, right] as const;
  });
  const scores = scoresOf(merges, { tokens, types: kinds });
  if (scores === null)
    throw unsupported('tokenizer.json', 'merges of every cut of every piece, in the order of scores', 'others');
  return [
    ['tokenizer.ggml.model', { text: 'llama' }],
    ['tokenizer.ggml.pre', { text: 'default' }],
    ['tokenizer.ggml.tokens', { texts: tokens.map((token, id) => (isAdded.has(id) ? withBlanks(token) : token)) }],
    ['tokenizer.ggml.scores', { f32s: scores }],
    ['tokenizer.ggml.token_type', { i32s: kinds }],
    ['tokenizer.ggml.add_space_prefix', { bool: addsBlank }],
    ...idValue('unknown', model.unk_token == null ? null : tokens.indexOf(model.unk_token)),
  ];
}

function vocabulary({ model, added_tokens: added }: Tokenizer, { vocabularySize }: ModelConfig): Vocabulary {
  const tokens = Array.from({ length: vocabularySize }, (_, id) => `[PAD${id}]`);
  const types = tokens.map((): number => tokenTypes.unused);
  const put = (token: string, id: number, type: number): void => {
    if (id >= vocabularySize)
      throw unsupported('tokenizer.json', `token ids below vocab_size ${vocabularySize}`, String(id));
    tokens[id] = token;
    types[id] = type;
  };
  for (const [token, id] of Object.entries(model.vocab)) put(token, id, tokenTypes.normal);
  for (const { id, content, special } of added) put(content, id, special ? tokenTypes.control : tokenTypes.own);
  return { tokens, types };
}

/** llama.cpp's name for the way this tokenizer splits a text. */
function requireCut({ model, normalizer, pre_tokenizer: preTokenizer }: Tokenizer): string {
  if (model.type !== 'BPE')
    throw unsupported(
      'tokenizer.json',
      'a byte-level BPE, the only kind that is written as GGUF',
      `the model "${model.type}"`,
    );
  const pre = nameOfCut(normalizer, preTokenizer);
  if (pre === null) {
    const expected = 'a normalizer and a pre_tokenizer of GPT-2, SmolLM, Qwen 2 or Llama 3';
    throw unsupported('tokenizer.json', expected, JSON.stringify({ normalizer, pre_tokenizer: preTokenizer }));
  }
  const ignores = model.ignore_merges === true;
  if (ignores !== ignoreMerges.has(pre)) {
    throw unsupported('tokenizer.json', `"ignore_merges" ${!ignores}, as llama.cpp has it for ${pre}`, String(ignores));
  }
  return pre;
}

const Processor = z.looseObject({
  type: z.string(),
  processors: z.array(z.unknown()).optional(),
  single: z.array(z.looseObject({ SpecialToken: z.looseObject({ id: z.string() }).optional() })).optional(),
});

/** The token before every text; null without one. */
function beginsWith(postProcessor: unknown): string | null {
  const parsed = Processor.safeParse(postProcessor);
  if (!parsed.success) return null;
  const { type, processors = [], single = [] } = parsed.data;
  if (type === 'Sequence') return processors.map(beginsWith).find((token) => token !== null) ?? null;
  return single[0]?.SpecialToken?.id ?? null;
}

function endValues(eos: number | null, ends: readonly number[]): Values {
  const ids = [...new Set([...(eos === null ? [] : [eos]), ...ends])];
  if (ids.length > endNames.length) {
    throw unsupported(
      'eos_token_id',
      `at most ${endNames.length} end tokens, which GGUF has names for`,
      ids.join(', '),
    );
  }
  return ids.flatMap((id, i) => idValue(endNames[i]!, id));
}

function idValue(name: string, id: number | null): Values {
  return id === null ? [] : [[`tokenizer.ggml.${name}_token_id`, { u32: id }]];
}

/** A separate template file wins over the config, as in loading. */
function templateValues({ chat_template: stated }: z.infer<typeof TokenizerConfig>, files: Texts): Values {
  const named = typeof stated === 'string' ? [{ name: 'default', template: stated }] : (stated ?? []);
  const of = (name: string, file: string): string | undefined =>
    files[file] ?? named.find((template) => template.name === name)?.template;
  const defaultTemplate = of('default', 'chat_template.jinja');
  const withTools = of('tool_use', 'additional_chat_templates/tool_use.jinja');
  return [
    ...(defaultTemplate === undefined ? [] : [['tokenizer.chat_template', { text: defaultTemplate }] as const]),
    ...(withTools === undefined ? [] : [['tokenizer.chat_template.tool_use', { text: withTools }] as const]),
  ];
}

function read<Schema extends z.ZodType>(files: Texts, name: string, schema: Schema): z.infer<Schema> {
  const parsed = schema.safeParse(JSON.parse(files[name] ?? '{}'));
  if (parsed.success) return parsed.data;
  throw unsupported(name, 'what Hugging Face writes', problemsIn(parsed.error));
}

function unsupported(where: string, expected: string, received: string): RatchetError {
  return new RatchetError('ModelUnsupported', `${where}: expected ${expected}, got ${received}.`);
}
