import { present } from '../../../core/present.ts';
import { missingFile, readText } from '../text-files.ts';
import { ChatTokenizer } from './tokenizer.ts';

/** Versions of one policy share their tokenizer; another model or two may be around beside it. */
const loadedMax = 4;
const loaded = new Map<string, ChatTokenizer>();

/** Settings that override how a folder's files render conversations. */
export interface Rendering {
  /** Takes the place of all chat templates that the folder has; missing = its own. */
  readonly chatTemplate?: string;
  /** Time that strftime_now gives the chat template, in the form of `minuteOf`; null or missing = the clock's. */
  readonly time?: string | null;
}

/** The tokenizer of a model folder, without its weights. Folders with the same tokenizer share one instance. */
export async function loadTokenizer(
  folder: string,
  { chatTemplate: given, time = null }: Rendering = {},
): Promise<ChatTokenizer> {
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
  const [chatTemplate, toolTemplate] = given === undefined ? own : [given, null];
  const key = [tokenizer, config, chatTemplate, toolTemplate, time].join('\0');
  const known = loaded.get(key);
  if (known) return known;
  const templates = present({ chatTemplate: chatTemplate ?? undefined, toolTemplate: toolTemplate ?? undefined });
  const made = new ChatTokenizer({ tokenizer, config, ...templates }, folder, time);
  loaded.set(key, made);
  if (loaded.size > loadedMax) loaded.delete(loaded.keys().next().value!);
  return made;
}
