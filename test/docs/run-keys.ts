/** The tables of docs/your-own-run.md: every key of a run file, from the table of settings. */
import { settingsByPath } from '../../config/settings/index.ts';

interface Key {
  /** `''` is the top of the file; of a list with its brackets, `env[]`. */
  readonly table: string;
  readonly key: string;
  readonly expected: string;
  /** As TOML writes it; null where there is none and the key may be left out. */
  readonly fallback: string | null;
  readonly isRequired: boolean;
  readonly means: string;
}

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

export function runKeyTables(): string {
  const keys = keysOfRunFiles();
  const tables = [...new Set(keys.map(({ table }) => table))];
  return tables
    .map((table) => {
      const title = table === '' ? 'Top of the file' : `\`${headerOf(table)}\``;
      const rows = keys
        .filter((key) => key.table === table)
        .map(({ key, expected, fallback, isRequired, means }) => {
          const usual = isRequired ? 'required' : fallback === null ? '–' : `\`${fallback}\``;
          return `| \`${key}\` | ${escaped(expected)} | ${usual} | ${escaped(means)} |`;
        });
      return [`### ${title}`, '', '| key | type | default | |', '| --- | --- | --- | --- |', ...rows, ''].join('\n');
    })
    .join('\n');
}

function headerOf(table: string): string {
  const name = table.replaceAll('[]', '');
  return table.endsWith('[]') ? `[[${name}]]` : `[${name}]`;
}

function escaped(text: string): string {
  return text.replaceAll('|', String.raw`\|`);
}
