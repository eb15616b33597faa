import { z } from 'zod';
import type { KeyPath } from './positions.ts';

/** Reads a zod schema: the field at a path, its expected value, the tables that know a key. */

/** The schema at a path, without its defaults; undefined if there is no such field. */
export function schemaAt(root: z.ZodType, path: KeyPath): z.ZodType | undefined {
  let schema: z.ZodType | undefined = unwrap(root);
  for (const part of path) {
    schema = tableOf(schema);
    if (schema instanceof z.ZodObject && Object.hasOwn(schema.shape, part)) schema = unwrap(schema.shape[part]);
    else if (schema instanceof z.ZodArray && typeof part === 'number') schema = unwrap(schema.element as z.ZodType);
    else if (schema instanceof z.ZodRecord && unwrap(schema.valueType as z.ZodType) instanceof z.ZodObject)
      schema = unwrap(schema.valueType as z.ZodType); // tables by names of the user's
    else return undefined;
  }
  return schema;
}

/** Expected value of the field at a path, in words. */
export function expectedAt(root: z.ZodType, path: KeyPath): string | undefined {
  const schema = schemaAt(root, path);
  if (schema === undefined) return undefined;
  const table = tableName(path);
  if (schema instanceof z.ZodObject) return typeof path.at(-1) === 'number' ? `a table` : `a table: [${table}]`;
  return schema.meta()?.expected ?? (schema instanceof z.ZodArray ? `a list of tables: [[${table}]]` : undefined);
}

/** The keys of the table at a path; empty if there is no table. */
export function keysAt(root: z.ZodType, path: KeyPath): string[] {
  const schema = tableOf(schemaAt(root, path));
  return schema instanceof z.ZodObject ? Object.keys(schema.shape) : [];
}

/** Every table of the schema by its header: `''` for the top level, `sampling`, `eval.env`. */
export function tablesOf(root: z.ZodType): ReadonlyMap<string, readonly string[]> {
  let tables = known.get(root);
  if (tables === undefined) {
    tables = tablesBelow(root, []);
    known.set(root, tables);
  }
  return tables;
}

/** Cached, because a schema does not change and each unknown key is searched in all of its tables. */
const known = new WeakMap<z.ZodType, ReadonlyMap<string, readonly string[]>>();

function tablesBelow(root: z.ZodType, path: readonly string[]): Map<string, readonly string[]> {
  const schema = tableOf(unwrap(root));
  const object = schema instanceof z.ZodArray ? unwrap(schema.element as z.ZodType) : schema;
  const tables = new Map<string, readonly string[]>();
  if (!(object instanceof z.ZodObject)) return tables;
  tables.set(path.join('.'), Object.keys(object.shape));
  for (const [key, field] of Object.entries(object.shape)) {
    for (const [name, keys] of tablesBelow(field as z.ZodType, [...path, key])) tables.set(name, keys);
  }
  return tables;
}

/** A path in the form of a table header: without positions. */
export function tableName(path: KeyPath): string {
  return path.filter((part) => typeof part === 'string').join('.');
}

/** The table, if the schema also has a short spelling. */
function tableOf(schema: z.ZodType | undefined): z.ZodType | undefined {
  if (!(schema instanceof z.ZodUnion)) return schema;
  return (schema.options as z.ZodType[]).map(unwrap).find((option) => option instanceof z.ZodObject) ?? schema;
}

function unwrap(schema: z.ZodType): z.ZodType {
  let inner = schema;
  while (inner instanceof z.ZodOptional || inner instanceof z.ZodDefault || inner instanceof z.ZodPrefault) {
    inner = inner.unwrap() as z.ZodType;
  }
  return inner;
}
