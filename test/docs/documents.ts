/** The documents of docs/guide/ that are made from the code: what stands between their marks. */
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { type Captures, capturesIn, commandIndex, commandPages } from './command-help.ts';
import { dialectIndex, dialectPages } from './dialect-pages.ts';
import { formatMarkdown } from './format-markdown.ts';
import { kindTables } from './kind-tables.ts';
import { keyIndex, keyPages } from './run-keys.ts';

export const docsFolder = fileURLToPath(new URL('../../docs/guide/', import.meta.url));
/** Folder for long and rarely read documents: made by `npm run docs`, ignored by git. */
export const ignoredFolder = fileURLToPath(new URL('../../docs/made/', import.meta.url));
const begin = '<!-- made from the code: npm run docs -->';
const end = '<!-- end of what is made -->';

export interface MadeDocument {
  /** Below docs/guide/. */
  readonly file: string;
  readonly body: (captures: Captures) => string | Promise<string>;
}

/** Text outside the marks is written by hand. Folders hold made documents only. */
export const madeDocuments: readonly MadeDocument[] = [
  { file: 'commands.md', body: commandIndex },
  ...commandPages,
  { file: 'your-own-run.md', body: keyIndex },
  ...keyPages,
  { file: 'adapters.md', body: kindTables },
  { file: 'dialects.md', body: dialectIndex },
  ...dialectPages,
];
export const madeFolders = ['commands', 'keys', 'dialects'] as const;

/** A document as the code has it now; captured output stays as it is where no new one is given. */
export async function made({ file, body }: MadeDocument, captures?: Captures): Promise<string> {
  const place = path.join(docsFolder, file);
  const text = existsSync(place) ? await readFile(place, 'utf8') : `${begin}\n${end}\n`;
  const [from, to] = [text.indexOf(begin), text.indexOf(end)];
  if (from === -1 || to < from) throw new Error(`${place}: expected "${begin}" and, after it, "${end}".`);
  const inner = await body(new Map([...capturesIn(text), ...(captures ?? [])]));
  const whole = `${text.slice(0, from + begin.length)}\n\n${inner}\n${text.slice(to)}`;
  return formatMarkdown(place, whole);
}
