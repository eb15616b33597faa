import { settingsByPath } from '../settings/index.ts';
import { becomes, type Field } from './dialect.ts';

/** A dialect's table of fields, as it is written: a text is one of our settings, with the type that it has there. */
export type Rows = Readonly<Record<string, Field | string>>;

/** A field that becomes one of our settings and takes what that takes. */
export function ours(path: string, more: Parameters<typeof becomes>[2] = {}): Field {
  const setting = settingsByPath.get(path);
  if (setting === undefined) throw new Error(`no setting is called ${path}`);
  return becomes(path, setting.type, more);
}

/** One of several places of a setting of ours. */
export function shared(path: string, schema = ours(path).schema, usual?: string): Field {
  const fate = { kind: 'becomes', path, isShared: true } as const;
  return { schema, fate, ...(usual === undefined ? {} : { usual }) };
}

/** Fields that are ours under the same name. */
export function same(...paths: readonly string[]): Record<string, Field> {
  return Object.fromEntries(paths.map((path) => [path, ours(path)]));
}

/** The same of one table. */
export function sameIn(table: string, ...keys: readonly string[]): Record<string, Field> {
  return same(...keys.map((key) => `${table}.${key}`));
}

/** Fields that are called as ours in a table of ours. */
export function into(table: string, names: string): Record<string, string> {
  const start = table === '' ? '' : `${table}.`;
  return Object.fromEntries(wordsOf(names).map((name) => [name, start + name.replace('?', '')]));
}

/** The same of several fields. */
export function all(names: string, field: Field): Record<string, Field> {
  return Object.fromEntries(wordsOf(names).map((name) => [name, field]));
}

/** The rows of a table, with its path before each. A name with a `?` behind it may be null. */
export function under(table: string, rows: Rows): Record<string, Field> {
  const start = table === '' ? '' : `${table}.`;
  const fields = Object.entries(rows).map(([name, row]): [string, Field] => {
    const field = typeof row === 'string' ? ours(row) : row;
    return [start + name.replace('?', ''), name.endsWith('?') ? { ...field, isNullable: true } : field];
  });
  return Object.fromEntries(fields);
}

export function wordsOf(names: string): string[] {
  return names.trim().split(/\s+/);
}
