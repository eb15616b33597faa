import { type Dialect, schemaOf } from '../dialects/dialect.ts';
import { type Layer, layeredPositions } from './layers.ts';
import { applyOverrides, type Wanted } from './overrides.ts';
import { inOwnWords, kindAt } from './own-words.ts';
import type { ParseOptions } from '../run-config.ts';
import type { KeyPath } from './positions.ts';
import { reportSecrets } from './report-secrets.ts';
import { Reporter } from './reporter.ts';
import { RatchetConfig } from '../settings/index.ts';
import type { Table } from './tables.ts';

/** Keyed by the schema's type. */
const wanted: Readonly<Record<string, Wanted>> = { string: 'text', object: 'table', array: 'list' };

/** A file merged with typed values, its short spellings expanded; and the positions of its values. */
export function withTyped(
  dialect: Dialect,
  file: Table,
  layers: readonly Layer[],
  options: ParseOptions,
): { readonly written: Table; readonly reporter: Reporter } {
  const schema = schemaOf(dialect);
  const isOwn = dialect.schema !== undefined;
  const overrides = inOwnWords(options.overrides ?? {}, { schema, own: RatchetConfig, isOwn });
  const wants = (path: KeyPath): Wanted => wanted[kindAt(schema, RatchetConfig, path) ?? ''] ?? 'any';
  const applied = applyOverrides(file, overrides, wants);
  const written = dialect.prepare?.(applied.table) ?? applied.table;
  const reporter = new Reporter(options.file, layeredPositions(layers), { ...applied, table: written });
  reportSecrets(written, reporter);
  return { written, reporter };
}
