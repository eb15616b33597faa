import { present } from '../../core/present.ts';
import { join } from 'node:path';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { problemsIn } from '../../core/problems-in.ts';
import { describeAdapter, readAdapter } from './adapter-folder.ts';
import { type ModelConfig, parseModelConfig } from './config.ts';
import type { LoraConfig } from './adapter-layout.ts';
import { mergeInPlace } from './lora.ts';
import { requireMemory } from './memory.ts';
import { parameterCount } from './parameter-layout.ts';
import { SharedTokenizers } from './tokenizer/shared-tokenizers.ts';
import { Parameters } from './parameters.ts';
import type { FloatType } from './safetensors.ts';
import {
  missingFile,
  parseJson,
  readText,
  readTextFiles,
  requiredFiles,
  type TextFiles,
  writeTextFiles,
} from './text-files.ts';
import { ChatTokenizer } from './tokenizer/tokenizer.ts';
import { readWeights, weightsFile, writeWeights } from './weights.ts';

/** A model as Hugging Face lays it out in a folder: config.json, model.safetensors, tokenizer.json and their company. */
export interface ModelFolder {
  readonly config: ModelConfig;
  /** MergedParameters for a folder with a LoRA adapter; `digest()` is the policy's identity in both cases. */
  readonly parameters: Parameters;
  readonly tokenizer: ChatTokenizer;
  /** Every file but the weights, as text, so that a saved model is the one that was loaded. */
  readonly files: TextFiles;
}

/** How the base of a LoRA adapter is found. */
interface ModelLoadOptions {
  /**
   * Checks or maps the absolute folder that an adapter names as its base; the returned folder is read. A server refuses
   * here what is outside of its allowed roots.
   */
  readonly resolveBase?: (folder: string) => string | Promise<string>;
  /** Time that strftime_now gives the chat template, in the form of `minuteOf`; null or missing = the clock's. */
  readonly templateTime?: string | null | undefined;
  /** Cache that gives folders with equal texts the same tokenizer. */
  readonly tokenizers?: SharedTokenizers;
}

const templateFile = 'chat_template.jinja';
const toolTemplateFile = 'additional_chat_templates/tool_use.jinja';
const GenerationConfig = z.looseObject({ eos_token_id: z.union([z.int(), z.array(z.int())]).nullish() });

/** A folder with a PEFT adapter gives its base with the adapter merged into it, and the base's text files. */
export async function loadModelFolder(folder: string, options: ModelLoadOptions = {}): Promise<ModelFolder> {
  return { ...(await loadModelTexts(folder, options)), parameters: await loadParameters(folder, options) };
}

/** Loads everything in a model folder except its weights. */
export async function loadModelTexts(
  folder: string,
  options: ModelLoadOptions = {},
): Promise<Omit<ModelFolder, 'parameters'>> {
  return describeModel(await readModelFiles(folder, options), folder, options);
}

/** The weights alone, for a process that has the tokenizer already. */
export async function loadParameters(folder: string, options: ModelLoadOptions = {}): Promise<Parameters> {
  const adapter = await describeAdapter(folder);
  if (!adapter) return loadPlainParameters(folder);
  const baseFolder = await resolveBase(adapter.baseFolder, folder, options);
  return loadAdapted(folder, baseFolder, adapter.lora);
}

/** Makes a model from its text files and weights that are in memory. */
export function assembleModel(files: TextFiles, parameters: Parameters): ModelFolder {
  return { ...describeModel(files, 'the model'), parameters };
}

/** The model with its chat templates replaced, as its saved folder will have it. */
export function withChatTemplate<Model extends Omit<ModelFolder, 'parameters'>>(
  model: Model,
  template: string,
  options: Pick<ModelLoadOptions, 'templateTime'> = {},
): Model {
  return { ...model, ...describeModel(withTemplateFile(model.files, template), 'the model', options) };
}

/** The text files of a model with another chat template in place of all they have. */
export function withTemplateFile(given: TextFiles, template: string): TextFiles {
  const { [toolTemplateFile]: _, ...kept } = given;
  const config = z
    .record(z.string(), z.unknown())
    .parse(parseJson(kept['tokenizer_config.json'] ?? '{}', 'tokenizer_config.json', 'settings of a tokenizer'));
  return {
    ...kept,
    // Readers that know no file of its own look here.
    'tokenizer_config.json': `${JSON.stringify({ ...config, chat_template: template }, null, 2)}\n`,
    [templateFile]: template,
  };
}

/**
 * Writes a whole folder. The weights come last and appear at once, so a folder that has them is complete. config.json
 * says in which precision they are.
 */
export async function saveModelFolder(
  model: Omit<ModelFolder, 'tokenizer' | 'config'>,
  folder: string,
  { dtype = 'float32' }: { dtype?: FloatType } = {},
): Promise<void> {
  await writeTextFiles(folder, withFloatType(model.files, dtype));
  await writeWeights(model.parameters, join(folder, weightsFile), { dtype });
}

export async function loadModelConfig(folder: string): Promise<ModelConfig> {
  const text = await readText(folder, 'config.json');
  if (text === null) throw missingFile(folder, 'config.json');
  return parseModelConfig(text, join(folder, 'config.json'));
}

/** Loads weights of a full model, not of an adapter. They go into `memory` if its size fits. */
export async function loadPlainParameters(folder: string, memory: Float32Array | null = null): Promise<Parameters> {
  const config = await loadModelConfig(folder);
  const count = parameterCount(config);
  const fits = memory?.length === count;
  if (!fits) requireMemory(count, 1, 'holding it');
  const parameters = new Parameters(config, fits ? memory : undefined);
  await readWeights(parameters, folder);
  return parameters;
}

async function loadAdapted(folder: string, baseFolder: string, lora: LoraConfig): Promise<Parameters> {
  const base = await loadPlainParameters(baseFolder);
  const digest = base.digest();
  const adapter = await readAdapter(folder, lora, { config: base.config, digest });
  return mergeInPlace(base, adapter, digest);
}

export async function resolveBase(baseFolder: string, folder: string, options: ModelLoadOptions): Promise<string> {
  const resolved = (await options.resolveBase?.(baseFolder)) ?? baseFolder;
  if ((await readText(resolved, 'config.json')) !== null) return resolved;
  throw new RatchetError(
    'ModelUnsupported',
    `${folder} holds an adapter whose base_model_name_or_path leads to ${resolved}, where no config.json is. Nothing is ` +
      `downloaded by itself: name the base model's folder there, absolute or relative to the adapter's.`,
  );
}

/** An adapter's own files, such as a tokenizer saved with it, go before those of its base. */
async function readModelFiles(folder: string, options: ModelLoadOptions): Promise<TextFiles> {
  const adapter = await describeAdapter(folder);
  const own = await readTextFiles(folder);
  const base = adapter ? await readTextFiles(await resolveBase(adapter.baseFolder, folder, options)) : {};
  const files = adapter ? { ...base, ...own, 'config.json': base['config.json'] ?? '' } : own;
  const missing = requiredFiles.find((name) => files[name] === undefined);
  if (missing !== undefined) throw missingFile(folder, missing);
  return files;
}

function describeModel(
  files: TextFiles,
  where: string,
  { templateTime = null, tokenizers = new SharedTokenizers() }: ModelLoadOptions = {},
): Pick<ModelFolder, 'config' | 'tokenizer' | 'files'> {
  const chatTemplate = files[templateFile];
  const toolTemplate = files[toolTemplateFile];
  const own = { tokenizer: files['tokenizer.json'] ?? '', config: files['tokenizer_config.json'] ?? '' };
  const tokenizer = tokenizers.of(
    [own.tokenizer, own.config, chatTemplate, toolTemplate, templateTime],
    () => new ChatTokenizer({ ...own, ...present({ chatTemplate, toolTemplate }) }, where, templateTime),
  );
  const config = parseModelConfig(files['config.json'] ?? '', join(where, 'config.json'));
  return { config: withGenerationConfig(config, files['generation_config.json'], where), tokenizer, files };
}

/** generation_config.json may name further end tokens, as chat models do. */
function withGenerationConfig(config: ModelConfig, text: string | undefined, where: string): ModelConfig {
  if (text === undefined) return config;
  const path = join(where, 'generation_config.json');
  const parsed = GenerationConfig.safeParse(parseJson(text, path, "Hugging Face's generation_config.json"));
  if (!parsed.success) throw new RatchetError('ModelUnsupported', `${path}: ${problemsIn(parsed.error)}`);
  const further = parsed.data.eos_token_id ?? [];
  return { ...config, endTokenIds: [...new Set([...config.endTokenIds, ...[further].flat()])] };
}

/** transformers loads weights in the precision that config.json names; `torch_dtype` is the older spelling. */
function withFloatType(files: TextFiles, dtype: FloatType): TextFiles {
  const text = files['config.json'];
  if (text === undefined) return files;
  const config = z.record(z.string(), z.unknown()).parse(parseJson(text, 'config.json', 'settings of a model'));
  const stated = config['dtype'] ?? config['torch_dtype'] ?? 'float32';
  if (stated === dtype) return files;
  const { torch_dtype: _, ...rest } = config;
  return { ...files, 'config.json': `${JSON.stringify({ ...rest, dtype }, null, 2)}\n` };
}
