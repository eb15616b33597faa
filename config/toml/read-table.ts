import type { z } from 'zod';
import { present } from '../../core/present.ts';
import { editDistance, nearestName, nearestNames } from '../../core/suggest.ts';
import type { KeyPath } from './positions.ts';
import { rotate } from './report-secrets.ts';
import { describe, type Reporter } from './reporter.ts';
import { expectedAt, keysAt, schemaAt, tableName, tablesOf } from './schema-reader.ts';
import { looksSecret } from './secrets.ts';
import { copied, isTable, type Table, valueAt } from './tables.ts';

/** Schema of a table, with further knowledge of its words. */
export interface Reading {
  readonly schema: z.ZodObject;
  /** Our own words, which a file of another system may contain below [ratchet]. */
  readonly own?: z.ZodObject;
  /** Fields that are known and refused, by path without positions, with advice. */
  readonly refused?: Readonly<Record<string, string>>;
  /** Other systems' names for this schema's fields. */
  readonly synonyms: Readonly<Record<string, string>>;
  /** The document that lists its keys; by default that of files that are no runs. */
  readonly keysIn?: string;
  /** Keyed by path without positions: advice for a value that the field does not accept. */
  readonly hints?: Readonly<Record<string, string>>;
  /** Replaces a missing required field, so that the rest can still be checked. */
  readonly placeholder?: (path: KeyPath) => unknown;
}

/**
 * The table as parsed by its schema, if valid. If not, every problem is reported, and repairable ones are repaired, so
 * that relations can still be checked; undefined if that does not help.
 */
export function readTable(table: Table, reading: Reading, reporter: Reporter): Table | undefined {
  const parsed = reading.schema.safeParse(table);
  if (parsed.success) return parsed.data;
  for (const issue of parsed.error.issues) reportIssue(issue, table, reading, reporter);
  return repair(table, parsed.error.issues, reading);
}

/** Removing one wrong value may leave its table without a required one; tables are at most this deep. */
const repairRounds = 6;

/** The table without its wrong values, and with placeholders for missing ones. */
function repair(table: Table, issues: readonly z.core.$ZodIssue[], reading: Reading): Table | undefined {
  const copy = copied(table);
  let wrong = issues;
  for (let round = 0; round < repairRounds; round++) {
    for (const issue of wrong) takeOut(copy, issue, reading);
    const parsed = reading.schema.safeParse(copy);
    if (parsed.success) return parsed.data;
    wrong = parsed.error.issues;
  }
  return undefined;
}

function takeOut(table: Table, issue: z.core.$ZodIssue, reading: Reading): void {
  const within = valueAt(table, issue.path);
  if (issue.code === 'unrecognized_keys') {
    if (isTable(within)) for (const unknown of issue.keys) delete within[unknown];
    return;
  }
  const path = issue.path as KeyPath;
  const parent = valueAt(table, path.slice(0, -1));
  const key = path.at(-1);
  if (Array.isArray(parent)) takeOut(table, { ...issue, path: path.slice(0, -1) }, reading);
  if (!isTable(parent) || typeof key !== 'string') return;
  const isMissing = within === undefined;
  delete parent[key];
  const placeholder = reading.placeholder?.(path);
  if (placeholder !== undefined) parent[key] = placeholder;
  else if (isMissing && path.length > 1) takeOut(table, { ...issue, path: path.slice(0, -1) }, reading);
}

function reportIssue(issue: z.core.$ZodIssue, table: Table, reading: Reading, reporter: Reporter): void {
  const path = issue.path as KeyPath;
  if (issue.code === 'unrecognized_keys') {
    for (const key of issue.keys) reportUnknownKey([...path, key], reading, reporter);
    return;
  }
  if (sayRefused(path, reading, reporter)) return;
  const received = valueAt(table, path);
  // A field inside free-form args has no schema of its own; the nearest described parent states the expected value.
  const described = path.map((_, i) => path.slice(0, path.length - i)).find((at) => expectedAt(reading.schema, at));
  const expected = (described && expectedAt(reading.schema, described)) ?? issue.message;
  const field = tableName(path);
  const hint = Object.hasOwn(reading.hints ?? {}, field) ? reading.hints?.[field] : undefined;
  const suggestion = hint ?? valueSuggestion(path, received, reading.schema);
  const wanted =
    typeof received === 'number' && !Number.isFinite(received)
      ? expected.replace('a number', 'a finite number')
      : expected;
  reporter.add({
    path,
    expected: wanted,
    received: describe(received),
    ...present({ suggestion }),
  });
}

function valueSuggestion(path: KeyPath, received: unknown, schema: z.ZodObject): string | undefined {
  if (typeof received === 'string' && looksSecret(received)) return rotate;
  const type = schemaAt(schema, path)?.type;
  if (type === 'array' && isTable(received)) {
    return `write [[${tableName(path)}]] with two brackets: there may be several`;
  }
  const asNumber = typeof received === 'string' && received.trim() !== '' && Number.isFinite(Number(received));
  if (asNumber && /number|int/.test(type ?? '')) return `write ${received.trim()} without quotes`;
  if (received === 'true' || received === 'false') return `write ${received} without quotes`;
  return undefined;
}

/** Reports a field that is known and refused, or within such a table. */
function sayRefused(path: KeyPath, { refused = {} }: Reading, reporter: Reporter): boolean {
  const field = tableName(path);
  const instead = Object.hasOwn(refused, field) ? refused[field] : undefined;
  if (instead === undefined) return false;
  reporter.add({
    path,
    expected: 'nothing here',
    received: 'a field Ratchet cannot honour',
    suggestion: `known, not supported yet: ${instead}`,
  });
  return true;
}

function reportUnknownKey(path: KeyPath, reading: Reading, reporter: Reporter): void {
  const key = String(path.at(-1));
  if (looksSecret(key)) return; // reported already, without the value
  if (sayRefused(path, reading, reporter)) return;
  const table = path.slice(0, -1);
  const keys = keysAt(reading.schema, table);
  const within = table.length === 0 ? 'a key of the top level' : `a key of [${tableName(table)}]`;
  const suggestion = keySuggestion(key, table, keys, reading);
  reporter.add({
    path,
    expected:
      suggestion === undefined
        ? `${within}: ${firstOf(keys, keysNamed, `${reading.keysIn ?? 'docs/guide/other-files.md'} has them`)}`
        : within,
    received: 'an unknown key',
    ...present({ suggestion }),
  });
}

function keySuggestion(
  key: string,
  table: KeyPath,
  keys: readonly string[],
  { schema, own, synonyms }: Reading,
): string | undefined {
  const here = tableName(table);
  const canonical = key.toLowerCase().replaceAll('-', '_');
  if (keys.includes(canonical)) return `did you mean "${canonical}"?`;
  const elsewhere = (wanted: string) =>
    [...tablesOf(schema)]
      .filter(([name, keys]) => name !== here && keys.includes(wanted))
      .map(([name]) => name)
      .sort((a, b) => depthOf(a) - depthOf(b)); // the table that is usually meant is not within another
  const anyOf = (wanted: string): string => {
    const tables = elsewhere(wanted);
    const named = tables.slice(0, tablesNamed).map((name) => placeOf(name, schema));
    const others = tables.length - named.length;
    return `${named.join(' or ')}${others === 0 ? '' : `, or in ${others} other table${others === 1 ? '' : 's'}`}`;
  };

  const near = nearestNames(key, keys);
  const other = otherMeaning();
  // One letter off a key of this table, and the name of another setting: either may be meant.
  const isClose = near.length > 0 && editDistance(canonical, near[0]!) === 1;
  if (other !== undefined) return isClose ? `${didYouMean(near)} Else ${other}` : other;
  if (near.length > 0) return didYouMean(near);
  const ours = own && schemaAt(own, [...table, canonical]);
  if (ours !== undefined) {
    const place = ['ratchet', here, ours.type === 'object' ? canonical : ''].filter((part) => part !== '').join('.');
    return `it is Ratchet's own: ${ours.type === 'object' ? `[${place}]` : `write it below [${place}]`}`;
  }
  const far = nearestName(key, [...tablesOf(schema).values()].flat());
  return far === undefined ? undefined : `did you mean "${far}"? It belongs ${anyOf(far)}`;

  /** The key's meaning in another table or another system. */
  function otherMeaning(): string | undefined {
    if (elsewhere(canonical).length > 0) return `"${canonical}" belongs ${anyOf(canonical)}`;
    const synonym = Object.hasOwn(synonyms, canonical) ? synonyms[canonical]! : undefined;
    if (synonym === undefined) return undefined;
    return keys.includes(synonym)
      ? `here it is called "${synonym}"`
      : `it is called "${synonym}" and belongs ${anyOf(synonym)}`;
  }
}

/** Longer lists would not help. */
const tablesNamed = 2;
const keysNamed = 16;

function firstOf(names: readonly string[], most: number, rest: string): string {
  const left = names.length - most;
  return left <= 0 ? names.join(', ') : `${names.slice(0, most).join(', ')}, and ${left} more (${rest})`;
}

/** The top level has depth 0. */
function depthOf(table: string): number {
  return table === '' ? 0 : table.split('.').length;
}

function didYouMean(names: readonly string[]): string {
  return `did you mean ${names.map((name) => `"${name}"`).join(' or ')}?`;
}

function placeOf(table: string, schema: z.ZodObject): string {
  if (table === '') return 'at the top, before the first table';
  return schemaAt(schema, table.split('.'))?.type === 'array' ? `in [[${table}]]` : `in [${table}]`;
}
