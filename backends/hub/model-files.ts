import { z } from 'zod';
import { requiredFiles } from '../../engine/model/text-files.ts';

/**
 * Selects files of a model's repository: its texts and its weights. Code, pickles and other formats are never fetched.
 */

/** `texts`: the files for prompts. `weights`: the whole model. */
export type ModelParts = 'texts' | 'weights';

const texts: readonly string[] = [
  ...requiredFiles,
  'generation_config.json',
  'special_tokens_map.json',
  'added_tokens.json',
  'vocab.json',
  'merges.txt',
  'tokenizer.model',
  'chat_template.jinja',
  'chat_template.json',
];
const furtherTemplates = /^additional_chat_templates\/[\w.-]+\.jinja$/;

export const wholeWeights = 'model.safetensors';
export const weightsIndex = 'model.safetensors.index.json';

/** The files of a repository that are fetched before the weights. */
export function textFilesOf(names: readonly string[]): string[] {
  return names.filter((name) => texts.includes(name) || furtherTemplates.test(name));
}

const WeightIndex = z.object({ weight_map: z.record(z.string(), z.string().regex(/^[\w.-]+\.safetensors$/)) });

/** The files in an index; null if it is invalid. */
export function shardsOf(index: string): string[] | null {
  let raw: unknown;
  try {
    raw = JSON.parse(index);
  } catch {
    return null;
  }
  const parsed = WeightIndex.safeParse(raw);
  return parsed.success ? [...new Set(Object.values(parsed.data.weight_map))].toSorted() : null;
}
