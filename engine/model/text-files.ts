import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { readRegularText } from '../../host/regular-file.ts';
import { ofRepository } from './model-repository.ts';

/** The files of a model folder beside its weights, as text by name. */
export type TextFiles = Readonly<Record<string, string>>;

export const requiredFiles: readonly string[] = ['config.json', 'tokenizer.json', 'tokenizer_config.json'];
const optionalFiles: readonly string[] = [
  'chat_template.jinja',
  'additional_chat_templates/tool_use.jinja',
  'generation_config.json',
  'special_tokens_map.json',
  'added_tokens.json',
];

/** Those of the model's text files that the folder has. */
export async function readTextFiles(folder: string): Promise<Record<string, string>> {
  const files: Record<string, string> = {};
  for (const name of [...requiredFiles, ...optionalFiles]) {
    const text = await readText(folder, name);
    if (text !== null) files[name] = text;
  }
  return files;
}

export async function writeTextFiles(folder: string, files: TextFiles): Promise<void> {
  await mkdir(folder, { recursive: true });
  for (const [name, text] of Object.entries(files)) {
    const path = join(folder, name);
    await mkdir(dirname(path), { recursive: true });
    await writeFile(path, text);
  }
}

/** Reads a text of a model folder. Throws as Node's `open` does if it is missing, and `NotAFile` for a link out of the folder. */
export function readModelText(folder: string, name: string): Promise<string> {
  return readRegularText(join(folder, name), undefined, ofRepository(folder));
}

/** null if there is no such file. */
export async function readText(folder: string, name: string): Promise<string | null> {
  try {
    return await readModelText(folder, name);
  } catch (error) {
    if (error instanceof Error && 'code' in error && (error.code === 'ENOENT' || error.code === 'ENOTDIR')) return null;
    throw error;
  }
}

export function missingFile(folder: string, name: string, index?: string): RatchetError {
  if (index !== undefined) {
    const message = `${folder} has no ${name}, which its ${index} names. Fetch the model again.`;
    return new RatchetError('ModelUnsupported', message);
  }
  const files = `${requiredFiles.join(', ')}, model.safetensors`;
  return new RatchetError(
    'ModelUnsupported',
    `${folder} has no ${name}. Expected a folder of Hugging Face files: ${files}.`,
  );
}

/** `expected` describes the file in errors. */
export function parseJson(text: string, where: string, expected: string): unknown {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new RatchetError('ModelUnsupported', `${where} is not JSON. Expected ${expected}.`, { cause });
  }
}
