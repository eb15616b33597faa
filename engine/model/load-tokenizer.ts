import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ChatTokenizer } from './tokenizer.ts';

/** Versions of one policy share their tokenizer; another model or two may be around beside it. */
const loadedMax = 4;
const loaded = new Map<string, ChatTokenizer>();

/** The tokenizer of a model folder, without its weights. Folders with the same tokenizer share one instance. */
export async function loadTokenizer(folder: string): Promise<ChatTokenizer> {
  const [tokenizer, config, chatTemplate] = await Promise.all([
    readFile(join(folder, 'tokenizer.json'), 'utf8'),
    readFile(join(folder, 'tokenizer_config.json'), 'utf8'),
    readFile(join(folder, 'chat_template.jinja'), 'utf8').catch(() => null), // optional
  ]);
  const key = [tokenizer, config, chatTemplate].join('\0');
  const known = loaded.get(key);
  if (known) return known;
  const made = new ChatTokenizer({ tokenizer, config, ...(chatTemplate === null ? {} : { chatTemplate }) }, folder);
  loaded.set(key, made);
  if (loaded.size > loadedMax) loaded.delete(loaded.keys().next().value!);
  return made;
}
