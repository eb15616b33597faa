export type Table = Record<string, unknown>;

export function isTable(value: unknown): value is Table {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Date);
}

/** A value as a table, or an empty one. */
export function tableOr(value: unknown): Table {
  return isTable(value) ? value : {};
}

/** The value at a path; undefined if there is none. */
export function valueAt(root: unknown, path: readonly PropertyKey[]): unknown {
  let here = root;
  for (const key of path) {
    if (typeof here !== 'object' || here === null || !Object.hasOwn(here, key)) return undefined;
    here = (here as Record<PropertyKey, unknown>)[key];
  }
  return here;
}

/** Assignment that is also safe for a key called `__proto__`. */
export function setOwn(table: Table, key: string, value: unknown): void {
  if (key !== '__proto__') table[key] = value;
  else Object.defineProperty(table, key, { value, writable: true, enumerable: true, configurable: true });
}

/** Sets a value, and creates the tables and lists on its way. */
export function setAt(root: Table, path: readonly (string | number)[], value: unknown): void {
  let here: Table | unknown[] = root;
  for (const [i, key] of path.entries()) {
    const isLast = i === path.length - 1;
    const next = isLast ? value : (valueAt(here, [key]) ?? (typeof path[i + 1] === 'number' ? [] : {}));
    if (Array.isArray(here)) here[key as number] = next;
    else setOwn(here, String(key), next);
    here = next as Table | unknown[];
  }
}

/** Removes a key from its table; an item of a list stays. */
export function removeAt(root: Table, path: readonly (string | number)[]): void {
  const table = valueAt(root, path.slice(0, -1));
  const key = path.at(-1);
  if (isTable(table) && typeof key === 'string') delete table[key];
}

/** Merges tables: tables key by key, anything else is replaced, lists as a whole. */
export function merged(under: Table, over: Table): Table {
  const result = copied(under);
  for (const [key, value] of Object.entries(over)) {
    const below = Object.hasOwn(result, key) ? result[key] : undefined;
    setOwn(result, key, isTable(below) && isTable(value) ? merged(below, value) : copied(value));
  }
  return result;
}

export function copied<Value>(value: Value): Value {
  if (Array.isArray(value)) return value.map(copied) as Value;
  if (!isTable(value)) return value;
  const copy: Table = {};
  for (const [key, item] of Object.entries(value)) setOwn(copy, key, copied(item));
  return copy as Value;
}

/** Differences between two values: tables by key, lists of equal length item by item. */
export function* differencesOf(
  here: unknown,
  there: unknown,
  path: readonly (string | number)[] = [],
): Generator<{ readonly path: readonly (string | number)[]; readonly here: unknown; readonly there: unknown }> {
  if (isTable(here) && isTable(there)) {
    for (const key of new Set([...Object.keys(here), ...Object.keys(there)]))
      yield* differencesOf(here[key], there[key], [...path, key]);
  } else if (Array.isArray(here) && Array.isArray(there) && here.length === there.length && here.some(isTable)) {
    for (const [i, item] of here.entries()) yield* differencesOf(item, there[i], [...path, i]);
  } else if (JSON.stringify(here) !== JSON.stringify(there)) yield { path, here, there };
}
