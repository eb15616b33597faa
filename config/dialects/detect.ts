import { schemaAt } from '../toml/schema-reader.ts';
import { isTable, type Table } from '../toml/tables.ts';
import { type Dialect, schemaOf } from './dialect.ts';

/** Detects the dialect of a file. */

/**
 * The dialect that knows the most keys of a file, the first in the list among equals. A proof, which only one dialect
 * can have, decides before. Unknown keys count for no dialect, so that a typo is reported in the intended one.
 */
export function detectDialect(table: Table, dialects: readonly Dialect[]): Dialect[] {
  const proven = dialects.filter((dialect) => dialect.proof?.(table) !== undefined);
  if (proven.length > 0) return proven.slice(0, 1);
  const possible = dialects.filter((dialect) => dialect.mayBe?.(table) !== false);
  const scored = possible.map((dialect) => ({ dialect, known: knownKeys(table, dialect) }));
  const most = Math.max(...scored.map(({ known }) => known));
  return scored.filter(({ known }) => known === most).map(({ dialect }) => dialect);
}

/** Number of a file's keys and tables that a dialect knows, less those of another type (a table in place of a text). */
function knownKeys(table: Table, dialect: Dialect, path: readonly (string | number)[] = []): number {
  let known = 0;
  for (const [key, value] of Object.entries(table)) {
    const schema = schemaAt(schemaOf(dialect), [...path, key]);
    // Refused keys are evidence for no dialect.
    if (schema === undefined || schema.type === 'never') continue;
    known += fits(schema.type, value) ? 1 : -1;
    if (isTable(value)) known += knownKeys(value, dialect, [...path, key]);
    else if (Array.isArray(value)) {
      for (const [i, item] of value.entries()) if (isTable(item)) known += knownKeys(item, dialect, [...path, key, i]);
    }
  }
  return known;
}

function fits(type: string, value: unknown): boolean {
  const isStructure = type === 'object' || type === 'record';
  if (isTable(value)) return isStructure || type === 'union';
  if (Array.isArray(value) && value.some(isTable)) return type === 'array' || type === 'union';
  return !isStructure;
}
