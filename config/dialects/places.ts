import type { KeyPath } from '../toml/positions.ts';
import { type Table, valueAt } from '../toml/tables.ts';

/** Finds the paths of a table of fields (`env[].id`) in a file. */

interface Step {
  readonly key: string;
  readonly isList: boolean;
}

/** Parsed paths of the tables of fields: every file is searched for each of some thousands. */
const taken = new Map<string, readonly Step[]>();

/** Paths where a field was written: once, several times in a list of tables, or nowhere. */
export function placesOf(path: string, table: Table): KeyPath[] {
  let steps = taken.get(path);
  if (steps === undefined) {
    steps = path.split('.').map((part) => ({ key: part.replace('[]', ''), isList: part.endsWith('[]') }));
    taken.set(path, steps);
  }
  let places: { readonly at: KeyPath; readonly value: unknown }[] = [{ at: [], value: table }];
  for (const { key, isList } of steps) {
    places = places.flatMap(({ at, value }) => {
      const found = valueAt(value, [key]);
      if (found === undefined) return [];
      if (!isList) return [{ at: [...at, key], value: found }];
      return Array.isArray(found) ? found.map((item: unknown, i) => ({ at: [...at, key, i], value: item })) : [];
    });
    if (places.length === 0) return [];
  }
  return places.map(({ at }) => at);
}

/** A path of a table of fields with the positions of another path, in order. */
export function placed(path: string, at: KeyPath): KeyPath {
  const positions = at.filter((part) => typeof part === 'number');
  return path.split('.').flatMap((part): (string | number)[] => {
    return part.endsWith('[]') ? [part.slice(0, -2), positions.shift() ?? 0] : [part];
  });
}
