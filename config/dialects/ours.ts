import { becomes, type Field } from './dialect.ts';

/** Builders for a dialect's table of fields. A name with a `?` behind it may be null. */

export type Rows = Readonly<Record<string, Field>>;

/** Fields of one of our tables with our names. */
export function into(table: string, names: string): Rows {
  const start = table === '' ? '' : `${table}.`;
  return Object.fromEntries(wordsOf(names).map((name) => [name, becomes(start + name.replace('?', ''))]));
}

/** Fields of ours in the same table. */
export function same(table: string, names: string): Record<string, Field> {
  return under(table, into(table, names));
}

export function all(names: string, field: Field): Record<string, Field> {
  return Object.fromEntries(wordsOf(names).map((name) => [name, field]));
}

/** The rows of a table, with its path as a prefix. */
export function under(table: string, rows: Rows): Record<string, Field> {
  const start = table === '' ? '' : `${table}.`;
  const fields = Object.entries(rows).map(([name, field]): [string, Field] => [
    start + name.replace('?', ''),
    name.endsWith('?') ? { ...field, isNullable: true } : field,
  ]);
  return Object.fromEntries(fields);
}

export function wordsOf(names: string): string[] {
  return names.trim().split(/\s+/);
}
