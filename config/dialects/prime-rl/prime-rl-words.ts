import { z } from 'zod';
import type { KeyPath } from '../../toml/positions.ts';
import { isTable, type Table, valueAt } from '../../toml/tables.ts';
import type { Dialect, Found, Own } from '../dialect.ts';
import { wordsOf } from '../ours.ts';
import { aliasesOf } from '../renames.ts';

/** Shared forms of prime-rl's dialects: null as a text, tables that turn something on, and values in several places. */

const none = 'None';

/**
 * Removes nulls: `"None"` resets a field, or an optional table, to its default. In tables of free keys it stays a null.
 * Anywhere else the text stays, and is refused as such.
 */
export function withoutNulls(table: Table, dialect: Dialect, optionalTables: string): Table {
  const tables = wordsOf(optionalTables);
  const fieldAt = (path: string) => dialect.fields[path] ?? dialect.fields[aliasesOf(dialect).get(path)?.path ?? ''];
  const cleaned = (within: Table, path: string): Table => {
    const entries = Object.entries(within).flatMap(([key, value]): [string, unknown][] => {
      const at = path === '' ? key : `${path}.${key}`;
      const field = fieldAt(at);
      if (value === none && (tables.includes(at) || field?.isNullable === true)) return [];
      if (field?.schema instanceof z.ZodRecord) return [[key, withNulls(value)]];
      if (isTable(value)) return [[key, cleaned(value, at)]];
      if (!Array.isArray(value)) return [[key, value]];
      return [[key, value.map((item) => (isTable(item) ? cleaned(item, `${at}[]`) : item))]];
    });
    return Object.fromEntries(entries);
  };
  return cleaned(table, '');
}

function withNulls(value: unknown): unknown {
  if (value === none) return null;
  if (Array.isArray(value)) return value.map(withNulls);
  if (!isTable(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, withNulls(item)]));
}

export function found(written: Table, path: string): Found | undefined {
  const at = path.split('.');
  const value = valueAt(written, at);
  return value === undefined ? undefined : { value, at };
}

export function hasTable(written: Table, path: string): boolean {
  return isTable(valueAt(written, path.split('.')));
}

/** The first of a value's several places. */
export function agreed(
  written: Table,
  own: Own,
  paths: readonly string[],
  { otherwise }: Pick<Dialect, 'otherwise'>,
): Found | undefined {
  const [first, ...rest] = paths.flatMap((path) => found(written, path) ?? []);
  for (const other of rest) own.agree(first!, other, otherwise);
  return first;
}

/** Copies a written value to one of our settings. */
export function take(written: Table, own: Own, path: string, ours: KeyPath): Found | undefined {
  const value = found(written, path);
  if (value) own.set(ours, value.value, value.at);
  return value;
}
