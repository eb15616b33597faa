/** The pages of docs/guide/keys/: every key of a run file, from the schema and from what the keys mean. */
import { z } from 'zod';
import { RatchetConfig } from '../../config/dialects/ratchet.ts';
import { laterFields } from '../../config/dialects/later.ts';
import { keyMeanings } from '../../config/dialects/ratchet-meanings.ts';
import { expectedAt, schemaAt, tablesOf } from '../../config/schema-reader.ts';
import type { MadeDocument } from './documents.ts';

interface Key {
  /** `''` is the top of the file. */
  readonly table: string;
  readonly key: string;
  readonly expected: string;
  /** As TOML writes it; null where there is none and the key may be left out. */
  readonly fallback: string | null;
  readonly isRequired: boolean;
}

/** Tables that are lists: `[[env]]`. */
const lists = new Set(['env', 'eval.env', 'pre_batch_filters', 'post_batch_filters']);

const environmentTables = ['env', 'buffer', 'difficulty_filter', 'breaker', 'pre_batch_filters', 'post_batch_filters'];

export function keysOfRunFiles(): Key[] {
  const tables = tablesOf(RatchetConfig);
  return [...tables].flatMap(([table, keys]) =>
    keys
      .filter((key) => !tables.has(pathOf(table, key)))
      .map((key) => {
        const path = [...pathTo(table), key];
        const field = fieldAt(table, key);
        return {
          table,
          key,
          expected: expectedAt(RatchetConfig, path) ?? 'a table',
          fallback: fallbackOf(field),
          isRequired: !field.safeParse(undefined).success,
        };
      }),
  );
}

/** Keys that have no meaning, and meanings that have no key. */
export function withoutMeaning(): { keys: string[]; meanings: string[] } {
  const keys = keysOfRunFiles().map(({ table, key }) => pathOf(table, key));
  const own = Object.entries(keyMeanings).flatMap(([table, own]) => Object.keys(own).map((key) => pathOf(table, key)));
  const meant = [...own, ...Object.keys(laterFields).map((path) => path.replaceAll('[]', ''))];
  return { keys: keys.filter((key) => !meant.includes(key)), meanings: meant.filter((key) => !keys.includes(key)) };
}

/** One page for each subject, by the first word of a table's name; a table without a subject stands on the first page. */
const subjects: readonly { readonly file: string; readonly title: string; readonly first: readonly string[] }[] = [
  { file: 'keys/run.md', title: 'The run, what it keeps and reports', first: [''] },
  { file: 'keys/environments.md', title: 'Environments, and which groups count', first: environmentTables },
  { file: 'keys/sampling.md', title: 'Sampling and inference servers', first: ['sampling', 'inference'] },
  {
    file: 'keys/training.md',
    title: 'The trainer, its loss and its optimizer',
    first: ['trainer', 'lora', 'kl_penalty'],
  },
  { file: 'keys/teacher.md', title: 'Learning from a stronger model', first: ['teacher', 'sft'] },
  { file: 'keys/evaluation.md', title: 'Evaluations and prompt search', first: ['eval', 'val', 'gepa'] },
];

export const keyPages: readonly MadeDocument[] = subjects.map(({ file, title }) => ({
  file,
  body: () => {
    const tables = tablesOfPage(file);
    return [
      `# Keys of a run file: ${title.toLowerCase()}`,
      '',
      `[A run of your own](../your-own-run.md#every-key) lists the other keys. – in the column of defaults means that the key may be left out.`,
      '',
      runKeyTables(tables),
    ].join('\n');
  },
}));

/** Every table, with the page that has its keys. */
export function keyIndex(): string {
  const rows = subjects.map(({ file, title }) => {
    const tables = tablesOfPage(file).map((table) => (table === '' ? 'top of the file' : `\`${bracketed(table)}\``));
    return `| [${title}](${file}) | ${tables.join(', ')} |`;
  });
  return ['| keys of | tables |', '| --- | --- |', ...rows].join('\n');
}

function tablesOfPage(file: string): string[] {
  const tables = [...new Set(keysOfRunFiles().map(({ table }) => table))];
  return tables.filter((table) => {
    const [first = ''] = table.split('.');
    const subject = subjects.find((one) => one.first.includes(first)) ?? subjects[0];
    return subject?.file === file;
  });
}

const bracketed = (table: string): string => (lists.has(table) ? `[[${table}]]` : `[${table}]`);

function runKeyTables(tables: readonly string[]): string {
  const keys = keysOfRunFiles();
  return tables
    .map((table) => {
      const title = table === '' ? 'Top of the file' : `\`${bracketed(table)}\``;
      const rows = keys
        .filter((key) => key.table === table)
        .map(({ key, expected, fallback, isRequired }) => {
          const usual = isRequired ? 'required' : fallback === null ? '–' : `\`${fallback}\``;
          return `| \`${key}\` | ${escaped(expected)} | ${usual} | ${escaped(meaningOf(table, key))} |`;
        });
      return [`## ${title}`, '', '| key | type | default | |', '| --- | --- | --- | --- |', ...rows, ''].join('\n');
    })
    .join('\n');
}

function pathOf(table: string, key: string): string {
  return table === '' ? key : `${table}.${key}`;
}

/** Of a list, its first element. */
function pathTo(table: string): (string | number)[] {
  const parts = table === '' ? [] : table.split('.');
  return parts.flatMap((part, i) => (lists.has(parts.slice(0, i + 1).join('.')) ? [part, 0] : [part]));
}

/** With its default, which schemaAt takes away. */
function fieldAt(table: string, key: string): z.ZodType {
  const object = schemaAt(RatchetConfig, pathTo(table));
  if (!(object instanceof z.ZodObject)) throw new Error(`${table} is no table of the schema`);
  return object.shape[key] as z.ZodType;
}

function fallbackOf(field: z.ZodType): string | null {
  const { success, data } = field.safeParse(undefined);
  if (!success || data === undefined) return null;
  return JSON.stringify(data).replaceAll('","', '", "');
}

function escaped(text: string): string {
  return text.replaceAll('|', String.raw`\|`);
}

function meaningOf(table: string, key: string): string {
  const later = Object.entries(laterFields).find(([path]) => path.replaceAll('[]', '') === pathOf(table, key))?.[1];
  return keyMeanings[table]?.[key] ?? (later ? `${later.meaning} (to come: ${later.feature})` : '');
}
