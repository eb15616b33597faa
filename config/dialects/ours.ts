import { settingsByPath } from '../settings/index.ts';
import { becomes, type Field } from './dialect.ts';

/** A field that becomes one of our settings and takes what that takes. */
export function ours(path: string, more: Parameters<typeof becomes>[2] = {}): Field {
  const setting = settingsByPath.get(path);
  if (setting === undefined) throw new Error(`no setting is called ${path}`);
  return becomes(path, setting.type, more);
}

/** Fields that are ours under the same name. */
export function same(...paths: readonly string[]): Record<string, Field> {
  return Object.fromEntries(paths.map((path) => [path, ours(path)]));
}

/** The same of one table. */
export function sameIn(table: string, ...keys: readonly string[]): Record<string, Field> {
  return same(...keys.map((key) => `${table}.${key}`));
}
