/** The documents of docs/ that are made from the code: what stands between their marks. */
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { format, resolveConfig } from 'prettier';
import { type Captures, capturesIn, commandSections } from './command-help.ts';
import { dialectTables } from './dialect-tables.ts';
import { metricTables } from './metric-tables.ts';
import { runKeyTables } from './run-keys.ts';

export const docsFolder = fileURLToPath(new URL('../../docs/', import.meta.url));
const begin = '<!-- made from the code: npm run docs -->';
const end = '<!-- end of what is made -->';

export const madeDocuments = ['your-own-run.md', 'dialects.md', 'metrics.md', 'commands.md'] as const;
export type MadeDocument = (typeof madeDocuments)[number];

/** A document as the code has it now; captured output stays as it is unless new one is given. */
export async function made(name: MadeDocument, captures?: Captures): Promise<string> {
  const file = path.join(docsFolder, name);
  const text = await readFile(file, 'utf8');
  const [from, to] = [text.indexOf(begin), text.indexOf(end)];
  if (from === -1 || to < from) throw new Error(`${file}: expected "${begin}" and, after it, "${end}".`);
  const inner = await body(name, captures ?? capturesIn(text));
  const whole = `${text.slice(0, from + begin.length)}\n\n${inner}\n${text.slice(to)}`;
  return format(whole, { ...(await resolveConfig(file)), parser: 'markdown' });
}

function body(name: MadeDocument, captures: Captures): string | Promise<string> {
  if (name === 'your-own-run.md') return runKeyTables();
  if (name === 'dialects.md') return dialectTables();
  return name === 'metrics.md' ? metricTables() : commandSections(captures);
}
