import type { KeyPath } from '../positions.ts';
import { type Table, valueAt } from '../tables.ts';

/** Where the paths of a table of fields (`env[].id`) are in a file. */

/** Where a field was written: once, several times in a list of tables, or nowhere. */
export function placesOf(path: string, table: Table): KeyPath[] {
  let places: KeyPath[] = [[]];
  for (const part of path.split('.')) {
    const key = part.replace('[]', '');
    places = places.flatMap((place) => {
      const found = valueAt(table, [...place, key]);
      if (found === undefined) return [];
      if (!part.endsWith('[]')) return [[...place, key]];
      return Array.isArray(found) ? found.map((_, i) => [...place, key, i]) : [];
    });
  }
  return places;
}

/** A path of a table of fields with the positions of another, in turn. */
export function placed(path: string, at: KeyPath): KeyPath {
  const positions = at.filter((part) => typeof part === 'number');
  return path.split('.').flatMap((part): (string | number)[] => {
    return part.endsWith('[]') ? [part.slice(0, -2), positions.shift() ?? 0] : [part];
  });
}
