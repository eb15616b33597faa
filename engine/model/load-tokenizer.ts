import { present } from '../../core/present.ts';
import { missingFile, readText } from './text-files.ts';
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
  const required = async (name: string): Promise<string> => {
    const text = await readText(folder, name);
    if (text === null) throw missingFile(folder, name);
    return text;
  };
  const [tokenizer, config, ...own] = await Promise.all([
    required('tokenizer.json'),
    required('tokenizer_config.json'),
    optional('chat_template.jinja'),
    optional('additional_chat_templates/tool_use.jinja'),
  ]);
  const [chatTemplate, toolTemplate] = givenTemplate === undefined ? own : [givenTemplate, null];
  const key = [tokenizer, config, chatTemplate, toolTemplate].join('\0');
  const known = loaded.get(key);
  if (known) return known;
  const templates = present({ chatTemplate, toolTemplate });
  const made = new ChatTokenizer({ tokenizer, config, ...templates }, folder);
  loaded.set(key, made);
  if (loaded.size > loadedMax) loaded.delete(loaded.keys().next().value!);
  return made;
}
