import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { readText } from './text-files.ts';
import { ChatTokenizer } from './tokenizer.ts';

/** Versions of one policy share their tokenizer; another model or two may be around beside it. */
const loadedMax = 4;
const loaded = new Map<string, ChatTokenizer>();

/**
 * The tokenizer of a model folder, without its weights. Folders with the same tokenizer share one instance. A chat template
 * that is given takes the place of all that the folder has.
 */
export async function loadTokenizer(folder: string, givenTemplate?: string): Promise<ChatTokenizer> {
  const optional = (name: string): Promise<string | null> => readText(folder, name);
  const [tokenizer, config, ...own] = await Promise.all([
    readFile(join(folder, 'tokenizer.json'), 'utf8'),
    readFile(join(folder, 'tokenizer_config.json'), 'utf8'),
    optional('chat_template.jinja'),
    optional('additional_chat_templates/tool_use.jinja'),
  ]);
  const [chatTemplate, toolTemplate] = givenTemplate === undefined ? own : [givenTemplate, null];
  const key = [tokenizer, config, chatTemplate, toolTemplate].join('\0');
  const known = loaded.get(key);
  if (known) return known;
  const templates = { ...(chatTemplate != null && { chatTemplate }), ...(toolTemplate != null && { toolTemplate }) };
  const made = new ChatTokenizer({ tokenizer, config, ...templates }, folder);
  loaded.set(key, made);
  if (loaded.size > loadedMax) loaded.delete(loaded.keys().next().value!);
  return made;
}
