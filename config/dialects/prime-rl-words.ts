import { z } from 'zod';
import type { KeyPath } from '../positions.ts';
import { isTable, type Table, valueAt } from '../tables.ts';
import type { Dialect, Found, Own } from './dialect.ts';
import { wordsOf } from './ours.ts';
import { aliasesOf } from './renames.ts';

/** What prime-rl's dialects have in common: null as a text, tables that turn something on, and values said in several places. */

/** `"None"` is prime-rl's null. */
const none = 'None';

/**
 * A file without its nulls: `"None"` takes a field, or a table that may be missing, back to what it is where nothing is
 * written. In tables of free keys null is null. Anywhere else the text stays, and is refused for what it is.
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

/** One value that may be said in several places: that of the first. */
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

/** The value, where it is written, is one of ours. */
export function take(written: Table, own: Own, path: string, ours: KeyPath): Found | undefined {
  const value = found(written, path);
  if (value) own.set(ours, value.value, value.at);
  return value;
}
