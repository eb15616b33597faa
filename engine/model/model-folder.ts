import { randomUUID } from 'node:crypto';
import { mkdir, open, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { type ModelConfig, parseModelConfig } from './config.ts';
import { requireMemory } from './memory.ts';
import { type ParameterSpec, parameterCount, Parameters } from './parameters.ts';
import { decodeSafetensors, encodeSafetensors, type NamedTensor } from './safetensors.ts';
import { ChatTokenizer } from './tokenizer.ts';

/** A model as Hugging Face lays it out in a folder: config.json, model.safetensors, tokenizer.json and their company. */
export interface ModelFolder {
  readonly config: ModelConfig;
  readonly parameters: Parameters;
  readonly tokenizer: ChatTokenizer;
  /** Every file but the weights, as text, so that a saved model is the one that was loaded. */
  readonly files: Readonly<Record<string, string>>;
}

const requiredFiles = ['config.json', 'tokenizer.json', 'tokenizer_config.json'];
const optionalFiles = ['chat_template.jinja', 'generation_config.json', 'special_tokens_map.json', 'added_tokens.json'];
const weightsFile = 'model.safetensors';
const indexFile = 'model.safetensors.index.json';
const WeightIndex = z.object({ weight_map: z.record(z.string(), z.string().regex(/^[^/\\]+$/)) });
const GenerationConfig = z.looseObject({ eos_token_id: z.union([z.int(), z.array(z.int())]).nullish() });

export async function loadModelFolder(folder: string): Promise<ModelFolder> {
  const files = await readTextFiles(folder);
  return { ...describeModel(files, folder), parameters: await loadParameters(folder) };
}

/** The weights alone, for a process that has the tokenizer already. */
export async function loadParameters(folder: string): Promise<Parameters> {
  const text = await readText(folder, 'config.json');
  if (text === null) throw missing(folder, 'config.json');
  const config = parseModelConfig(text, join(folder, 'config.json'));
  requireMemory(parameterCount(config), 1, 'holding it');
  const parameters = new Parameters(config);
  await fillParameters(parameters, folder);
  return parameters;
}

/** Makes a model from its text files and weights that are in memory. */
export function assembleModel(files: Readonly<Record<string, string>>, parameters: Parameters): ModelFolder {
  return { ...describeModel(files, 'the model'), parameters };
}

/** Writes a whole folder. The weights come last and appear at once, so a folder that has them is complete. */
export async function saveModelFolder(model: Omit<ModelFolder, 'tokenizer' | 'config'>, folder: string): Promise<void> {
  await mkdir(folder, { recursive: true });
  for (const [name, text] of Object.entries(model.files)) await writeFile(join(folder, name), text);
  await writeAtOnce(join(folder, weightsFile), encodeParameters(model.parameters));
}

export function encodeParameters(parameters: Parameters): Uint8Array {
  const tensors = parameters.layout.map(({ name, shape }): [string, NamedTensor] => [
    name,
    { shape, data: parameters.view(name) },
  ]);
  return encodeSafetensors(Object.fromEntries(tensors), { format: 'pt' });
}

/** The file is whole or absent, also after a power cut: a neighbour is written, synced and renamed. */
export async function writeAtOnce(path: string, bytes: Uint8Array): Promise<void> {
  const temporary = `${path}.${randomUUID()}.tmp`;
  try {
    const file = await open(temporary, 'wx');
    try {
      await file.writeFile(bytes);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(temporary, path);
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
}

function describeModel(
  files: Readonly<Record<string, string>>,
  where: string,
): Pick<ModelFolder, 'config' | 'tokenizer' | 'files'> {
  const chatTemplate = files['chat_template.jinja'];
  const tokenizer = new ChatTokenizer(
    {
      tokenizer: files['tokenizer.json'] ?? '',
      config: files['tokenizer_config.json'] ?? '',
      ...(chatTemplate === undefined ? {} : { chatTemplate }),
    },
    where,
  );
  const config = parseModelConfig(files['config.json'] ?? '', join(where, 'config.json'));
  return { config: withGenerationConfig(config, files['generation_config.json'], where), tokenizer, files };
}

/** generation_config.json may name further end tokens, as chat models do. */
function withGenerationConfig(config: ModelConfig, text: string | undefined, where: string): ModelConfig {
  if (text === undefined) return config;
  const parsed = GenerationConfig.safeParse(JSON.parse(text));
  if (!parsed.success) {
    const message = `${join(where, 'generation_config.json')}: ${z.prettifyError(parsed.error)}`;
    throw new RatchetError('ModelUnsupported', message);
  }
  const further = parsed.data.eos_token_id ?? [];
  return { ...config, endTokenIds: [...new Set([...config.endTokenIds, ...[further].flat()])] };
}

async function readTextFiles(folder: string): Promise<Record<string, string>> {
  const files: Record<string, string> = {};
  for (const name of [...requiredFiles, ...optionalFiles]) {
    const text = await readText(folder, name);
    if (text !== null) files[name] = text;
    else if (requiredFiles.includes(name)) throw missing(folder, name);
  }
  return files;
}

async function readText(folder: string, name: string): Promise<string | null> {
  return (await readBytes(folder, name))?.toString('utf8') ?? null;
}

async function readBytes(folder: string, name: string): Promise<Buffer | null> {
  try {
    return await readFile(join(folder, name));
  } catch (error) {
    if (error instanceof Error && 'code' in error && (error.code === 'ENOENT' || error.code === 'ENOTDIR')) return null;
    throw error;
  }
}

async function fillParameters(parameters: Parameters, folder: string): Promise<void> {
  const missingNames = new Set(parameters.layout.map(({ name }) => name));
  for (const fileName of await weightFiles(folder)) {
    const bytes = await readBytes(folder, fileName);
    if (!bytes) throw missing(folder, fileName);
    const { tensors } = decodeSafetensors(bytes, join(folder, fileName));
    for (const spec of parameters.layout) {
      const tensor = tensors.get(spec.name);
      if (!tensor) continue;
      copyTensor({ parameters, spec, tensor, where: join(folder, fileName) });
      missingNames.delete(spec.name);
    }
  }
  if (missingNames.size === 0) return;
  throw new RatchetError(
    'CheckpointDamaged',
    `${folder} lacks ${missingNames.size} of ${parameters.layout.length} tensors that its config.json implies, among ` +
      `them "${[...missingNames][0]}". Fetch the model again.`,
  );
}

async function weightFiles(folder: string): Promise<string[]> {
  const text = await readText(folder, indexFile);
  if (text === null) return [weightsFile];
  const index = WeightIndex.safeParse(JSON.parse(text));
  if (!index.success) {
    throw new RatchetError('CheckpointDamaged', `${join(folder, indexFile)}: ${z.prettifyError(index.error)}`);
  }
  return [...new Set(Object.values(index.data.weight_map))].toSorted();
}

interface CopyTensor {
  readonly parameters: Parameters;
  readonly spec: ParameterSpec;
  readonly tensor: NamedTensor;
  readonly where: string;
}

function copyTensor({ parameters, spec, tensor, where }: CopyTensor): void {
  const expected = spec.shape.join();
  if (!(tensor.data instanceof Float32Array) || tensor.shape.join() !== expected) {
    throw new RatchetError(
      'CheckpointDamaged',
      `${where}: tensor "${spec.name}" must be floats of shape [${expected}], as config.json implies; it has shape ` +
        `[${tensor.shape.join()}].`,
    );
  }
  parameters.view(spec.name).set(tensor.data);
}

function missing(folder: string, name: string): RatchetError {
  return new RatchetError(
    'ModelUnsupported',
    `${folder} has no ${name}. Expected a folder of Hugging Face files: ${requiredFiles.join(', ')}, ${weightsFile}.`,
  );
}
