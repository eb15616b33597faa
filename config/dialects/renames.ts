import { formatPath, type KeyPath, pathKey } from '../toml/positions.ts';
import { copied, isTable, removeAt, setAt, type Table, valueAt } from '../toml/tables.ts';
import type { Dialect, Field, Rename, TranslationProblem } from './dialect.ts';
import { placed, placesOf } from './places.ts';

/** Reads fields and tables under former names. */

interface Alias {
  readonly path: string;
  /** Successive renames from the old name to the new one. */
  readonly renames: readonly Rename[];
}

type Renamed = Pick<Dialect, 'fields' | 'renames'>;

const aliases = new WeakMap<Renamed, ReadonlyMap<string, Alias>>();

/** Every older path of a field: each of its names, in each of its tables' names. */
export function aliasesOf(dialect: Renamed): ReadonlyMap<string, Alias> {
  const known = aliases.get(dialect);
  if (known) return known;
  const found = new Map<string, Alias>();
  let paths: (readonly [path: string, alias: Alias])[] = Object.keys(dialect.fields).map((path) => [
    path,
    { path, renames: [] },
  ]);
  while (paths.length > 0) {
    const older = paths.flatMap(([path, alias]) => olderPaths(path, alias, dialect));
    paths = older.filter(([path]) => !found.has(path) && !Object.hasOwn(dialect.fields, path));
    for (const [path, alias] of paths) found.set(path, alias);
  }
  aliases.set(dialect, found);
  return found;
}

function olderPaths(path: string, alias: Alias, { renames = [] }: Renamed): (readonly [string, Alias])[] {
  return renames
    .filter(({ is }) => path === is || path.startsWith(`${is}.`))
    .map((rename) => [
      rename.was + path.slice(rename.is.length),
      { path: alias.path, renames: [rename, ...alias.renames] },
    ]);
}

/** The fields of a dialect under all their names. */
export function fieldsWithOldNames(dialect: Renamed): Readonly<Record<string, Field>> {
  if (!dialect.renames) return dialect.fields;
  const old = [...aliasesOf(dialect)].map(([path, alias]): [string, Field] => [path, dialect.fields[alias.path]!]);
  return { ...dialect.fields, ...Object.fromEntries(old) };
}

interface Newer {
  readonly table: Table;
  /** The path in the file that corresponds to a path with current names. */
  readonly placeOf: (path: KeyPath) => KeyPath;
  readonly warnings: readonly string[];
  readonly problems: readonly TranslationProblem[];
}

/** The file's table with every field under its newest name. */
export function withNewNames(dialect: Dialect, written: Table): Newer {
  if (!dialect.renames) return { table: written, placeOf: (path) => path, warnings: [], problems: [] };
  const table = copied(written);
  const used = new Set<Rename>();
  const places = new Map<string, KeyPath>();
  const problems: TranslationProblem[] = [];
  moveEmptyTables(dialect.renames, table, used);
  const twice = listsUnderBothNames(dialect.renames, written);
  for (const { was, is } of twice) {
    const expected = `nothing beside [[${plain(is)}]]: it is the older name of the same list`;
    problems.push({ paths: [plain(was).split('.')], expected, received: `[[${plain(was)}]]` });
  }
  for (const [old, { path, renames }] of aliasesOf(dialect)) {
    if (renames.some((rename) => twice.includes(rename))) continue;
    for (const at of placesOf(old, written)) {
      const value = valueAt(written, at);
      const to = placed(path, at);
      for (const rename of renames) used.add(rename);
      const other = valueAt(table, to);
      if (other !== undefined && JSON.stringify(other) !== JSON.stringify(value)) {
        problems.push({
          paths: [at, to],
          expected: `one of the two: it is an older name of ${formatPath(to)}, which is ${JSON.stringify(other)}`,
          received: JSON.stringify(value),
        });
        continue;
      }
      setAt(table, to, value);
      removeAt(table, at);
      places.set(pathKey(to), at);
    }
  }
  const warnings: string[] = [...used].map(
    ({ was, is, since }) =>
      `${plain(was)} is an older name: ${dialect.title.split(' ')[0]} calls it ${plain(is)} since ${since}. It is read as that.`,
  );
  if (used.size > 0) warnings.push(`the file is of an older version: what is not written is as in ${dialect.title}.`);
  return { table, placeOf: placeIn(places), warnings, problems };
}

function listsUnderBothNames(renames: readonly Rename[], written: Table): Rename[] {
  const isWritten = (path: string): boolean => Array.isArray(valueAt(written, plain(path).split('.')));
  return renames.filter(({ was, is }) => was.endsWith('[]') && isWritten(was) && isWritten(is));
}

function plain(path: string): string {
  return path.replaceAll('[]', '');
}

/** An empty table still turns something on. */
function moveEmptyTables(renames: readonly Rename[], table: Table, used: Set<Rename>): void {
  for (const rename of renames) {
    const { was, is } = rename;
    if (was.includes('[]')) continue;
    const value = valueAt(table, was.split('.'));
    if (!isTable(value) || Object.keys(value).length > 0) continue;
    used.add(rename);
    removeAt(table, was.split('.'));
    if (valueAt(table, is.split('.')) === undefined) setAt(table, is.split('.'), {});
  }
}

function placeIn(places: ReadonlyMap<string, KeyPath>): (path: KeyPath) => KeyPath {
  return (path) => {
    for (let length = path.length; length > 0; length--) {
      const found = places.get(pathKey(path.slice(0, length)));
      if (found) return [...found, ...path.slice(length)];
    }
    return path;
  };
}
