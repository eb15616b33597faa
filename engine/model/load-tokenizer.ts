import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ChatTokenizer } from './tokenizer.ts';

/** The tokenizer of a model folder, without its weights. */
export async function loadTokenizer(folder: string): Promise<ChatTokenizer> {
  const [tokenizer, config, chatTemplate] = await Promise.all([
    readFile(join(folder, 'tokenizer.json'), 'utf8'),
    readFile(join(folder, 'tokenizer_config.json'), 'utf8'),
    readFile(join(folder, 'chat_template.jinja'), 'utf8').catch(() => null), // optional
  ]);
  return new ChatTokenizer({ tokenizer, config, ...(chatTemplate === null ? {} : { chatTemplate }) }, folder);
}
