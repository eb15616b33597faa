import { applyOverrides } from './overrides.ts';
import { parseToml, type TomlFile } from './parse-toml.ts';
import { findPositions } from './positions.ts';
import type { Problem } from './problems.ts';
import { type Reading, readTable } from './read-table.ts';
import { Reporter } from './reporter.ts';
import { schemaAt } from './schema-reader.ts';
import type { Table } from './tables.ts';

export interface FileOptions {
  /** The path that the user gave; appears in errors. */
  readonly file: string;
  /** Dotted keys with values as typed. */
  readonly overrides?: Readonly<Record<string, string>>;
}

export type ReadFile =
  | {
      readonly ok: true;
      readonly table: Table | undefined;
      readonly written: Table;
      readonly reporter: Reporter;
      readonly warnings: readonly string[];
    }
  | { readonly ok: false; readonly problems: Problem[] };

/**
 * A file that is no run, checked against its schema. `table` is undefined if it has too many errors for further checks.
 */
export function readFile(source: string | TomlFile, { file, overrides = {} }: FileOptions, reading: Reading): ReadFile {
  const { table: written, problem, text } = typeof source === 'string' ? parseToml(source, file) : source;
  if (problem) return { ok: false, problems: [problem] };
  const applied = applyOverrides(written, overrides, (path) =>
    schemaAt(reading.schema, path)?.type === 'string' ? 'text' : 'any',
  );
  const reporter = new Reporter(file, findPositions(text), applied);
  const table = readTable(applied.table, reading, reporter);
  return { ok: true, table, written: applied.table, reporter, warnings: [] };
}
