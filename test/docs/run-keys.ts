/** The pages of docs/guide/keys/: every key of a run file, from the table of settings. */
import { settingsByPath } from '../../config/settings/index.ts';
import type { MadeDocument } from './documents.ts';

interface Key {
  /** `''` is the top of the file; of a list with its brackets, `env[]`. */
  readonly table: string;
  readonly key: string;
  readonly expected: string;
  /** Default in TOML; null without one, when the key may be left out. */
  readonly fallback: string | null;
  readonly isRequired: boolean;
  readonly means: string;
}

const environmentTables = ['env', 'buffer', 'difficulty_filter', 'breaker', 'pre_batch_filters', 'post_batch_filters'];

export function keysOfRunFiles(): Key[] {
  return [...settingsByPath].map(([path, { type, written, means }]) => {
    const { success, data } = written.safeParse(undefined);
    return {
      table: path.slice(0, Math.max(0, path.lastIndexOf('.'))),
      key: path.slice(path.lastIndexOf('.') + 1),
      expected: type.meta()?.expected ?? 'a table',
      fallback: data === undefined ? null : JSON.stringify(data).replaceAll('","', '", "'),
      isRequired: !success,
      means,
    };
  });
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
  { file: 'keys/teacher.md', title: 'Learning from a stronger model', first: ['teacher', 'sft', 'data'] },
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
    const [first = ''] = table.replaceAll('[]', '').split('.');
    const subject = subjects.find((one) => one.first.includes(first)) ?? subjects[0];
    return subject?.file === file;
  });
}

function bracketed(table: string): string {
  const name = table.replaceAll('[]', '');
  return table.endsWith('[]') ? `[[${name}]]` : `[${name}]`;
}

function runKeyTables(tables: readonly string[]): string {
  const keys = keysOfRunFiles();
  return tables
    .map((table) => {
      const title = table === '' ? 'Top of the file' : `\`${bracketed(table)}\``;
      const rows = keys
        .filter((key) => key.table === table)
        .map(({ key, expected, fallback, isRequired, means }) => {
          const usual = isRequired ? 'required' : fallback === null ? '–' : `\`${fallback}\``;
          return `| \`${key}\` | ${escaped(expected)} | ${usual} | ${escaped(means)} |`;
        });
      return [`## ${title}`, '', '| key | type | default | |', '| --- | --- | --- | --- |', ...rows, ''].join('\n');
    })
    .join('\n');
}

function escaped(text: string): string {
  return text.replaceAll('|', String.raw`\|`);
}
