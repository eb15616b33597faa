/**
 * The difference between two JSON values, itself as JSON; null means no change. Sent in place of a value to a reader
 * that has the earlier one: small for values that grow at their end.
 */
export type Change =
  /** Replaces the earlier value. */
  | { readonly is: unknown }
  /** Changed keys of an object, and removed ones. */
  | { readonly keys: Readonly<Record<string, Change>>; readonly gone?: readonly string[] }
  /** A list: pieces of the earlier one, as [from, up to], and new items between them. */
  | { readonly list: readonly (readonly [number, number] | { readonly new: readonly unknown[] })[] }
  /** A list of the same length: changes by index. */
  | { readonly at: Readonly<Record<number, Change>> };

/** Null if both are equal. */
export function changeBetween(before: unknown, after: unknown): Change | null {
  if (Object.is(before, after)) return null;
  if (Array.isArray(before) && Array.isArray(after)) return changeOfList(before, after);
  if (!isObject(before) || !isObject(after)) return { is: after };
  const keys = Object.entries(after).flatMap(([key, value]): [string, Change][] => {
    const change = Object.hasOwn(before, key) ? changeBetween(before[key], value) : { is: value };
    return change === null ? [] : [[key, change]];
  });
  const gone = Object.keys(before).filter((key) => !Object.hasOwn(after, key));
  if (keys.length + gone.length === 0) return null;
  return { keys: Object.fromEntries(keys), ...(gone.length > 0 ? { gone } : {}) };
}

/** Applies a change, inverse to `changeBetween`. */
export function changed(before: unknown, change: Change | null): unknown {
  if (change === null) return before;
  if ('is' in change) return change.is;
  if ('keys' in change) {
    const all = Object.entries(before as Readonly<Record<string, unknown>>);
    const left = all.filter(([key]) => change.gone?.includes(key) !== true);
    const own = Object.entries(change.keys).map(([key, one]) => [key, changed(valueAt(before, key), one)]);
    return Object.fromEntries([...left, ...own]);
  }
  const list = before as readonly unknown[];
  if ('at' in change) return list.map((value, i) => changed(value, change.at[i] ?? null));
  return change.list.flatMap((piece) => ('new' in piece ? piece.new : list.slice(piece[0], piece[1])));
}

function valueAt(before: unknown, key: string): unknown {
  return Object.hasOwn(before as object, key) ? (before as Readonly<Record<string, unknown>>)[key] : undefined;
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function changeOfList(before: readonly unknown[], after: readonly unknown[]): Change | null {
  if (before.length === after.length) {
    const found = after.map((value, i) => changeBetween(before[i], value));
    const at = Object.fromEntries(found.flatMap((change, i) => (change === null ? [] : [[i, change]])));
    const count = Object.keys(at).length;
    if (count === 0) return null;
    if (count * 4 <= after.length + 4) return { at };
  }
  return { list: piecesOf(before, after) };
}

type Piece = [number, number] | { new: unknown[] };

/** Common ends stay. Objects between are searched after the last match; equal numbers and texts may be chance. */
function piecesOf(before: readonly unknown[], after: readonly unknown[]): Piece[] {
  const shorter = Math.min(before.length, after.length);
  const isSame = (a: unknown, b: unknown): boolean => changeBetween(a, b) === null;
  let first = 0;
  while (first < shorter && isSame(before[first], after[first])) first++;
  let rest = 0;
  while (rest < shorter - first && isSame(before[before.length - 1 - rest], after[after.length - 1 - rest])) rest++;
  const places = placesOf(before, first, before.length - rest);
  const pieces = new Pieces();
  pieces.keep(0, first);
  let next = first;
  for (const value of after.slice(first, after.length - rest)) {
    const at = isObject(value) ? placeFrom(places.get(JSON.stringify(value)), next) : null;
    if (at === null) pieces.add(value);
    else pieces.keep(at, at + 1);
    if (at !== null) next = at + 1;
  }
  pieces.keep(before.length - rest, before.length);
  return pieces.all;
}

class Pieces {
  readonly all: Piece[] = [];

  keep(from: number, upTo: number): void {
    const last = this.all.at(-1);
    if (from === upTo) return;
    if (Array.isArray(last) && last[1] === from) last[1] = upTo;
    else this.all.push([from, upTo]);
  }

  add(value: unknown): void {
    const last = this.all.at(-1);
    if (last && 'new' in last) last.new.push(value);
    else this.all.push({ new: [value] });
  }
}

function placesOf(list: readonly unknown[], from: number, upTo: number): Map<string, number[]> {
  const places = new Map<string, number[]>();
  for (let i = from; i < upTo; i++) {
    if (!isObject(list[i])) continue;
    const text = JSON.stringify(list[i]);
    const known = places.get(text);
    if (known) known.push(i);
    else places.set(text, [i]);
  }
  return places;
}

/** The first index from `next` on; earlier ones are no longer needed. */
function placeFrom(places: number[] | undefined, next: number): number | null {
  if (!places) return null;
  let low = 0;
  let high = places.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (places[middle]! < next) low = middle + 1;
    else high = middle;
  }
  return places[low] ?? null;
}
