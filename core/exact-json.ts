import { parseWritten, readWritten, type WrittenJson, writtenCompactly } from './written-json.ts';

/**
 * JSON whose numbers and order of keys survive JavaScript: a prompt distinguishes 2.0 from 2 and 2^53 + 1 from 2^53,
 * and a key "10" keeps its position. Values are plain; their written form is kept beside them for as long as they live.
 * A copy of an object loses its form, the objects within do not.
 */
const written = new WeakMap<object, WrittenJson>();
let hasWritten = false;

/** JSON.parse, with numbers and keys kept as they were written. Throws as JSON.parse does. */
export function parseExact(text: string): unknown {
  const value: unknown = JSON.parse(text);
  if (!mayChange.test(text)) return value;
  const exact = parseWritten(text);
  if (exact !== null) note(value, exact);
  return value;
}

/**
 * Parses an object and keeps the written form of some members only: the others may hold thousands of numbers that need
 * no exactness. The first occurrence of a key counts.
 */
export function parseExactMembers(text: string, keys: readonly string[]): unknown {
  const value: unknown = JSON.parse(text);
  if (typeof value !== 'object' || value === null) return value;
  for (const key of keys) {
    const marker = `${JSON.stringify(key)}:`;
    const at = text.indexOf(marker);
    const member = (value as Fields)[key];
    if (at < 0 || typeof member !== 'object' || member === null) continue;
    const exact = mayChange.test(text.slice(at)) ? readWritten(text, at + marker.length) : null;
    if (exact !== null) note(member, exact.value);
  }
  return value;
}

/** Gives a copy the written form of its sources, for members with unchanged values. */
export function writtenLike<T extends object>(copy: T, ...sources: readonly (object | undefined)[]): T {
  const kept = new Map<string, WrittenJson>();
  for (const source of sources) {
    const exact = source && written.get(source);
    if (exact?.kind !== 'object') continue;
    for (const [key, item] of exact.entries) {
      const value = (copy as Fields)[key];
      if (typeof value === 'number' && Object.is(value, (source as Fields)[key])) kept.set(key, item);
    }
  }
  if (kept.size === 0) return copy;
  const entries = Object.entries(copy).filter(([, value]) => value !== undefined);
  const exact: [string, WrittenJson][] = entries.map(([key, value]) => [key, kept.get(key) ?? writtenValue(value)]);
  written.set(copy, { kind: 'object', entries: new Map(exact) });
  hasWritten = true;
  return copy;
}

function writtenValue(value: unknown): WrittenJson {
  if (typeof value !== 'object' || value === null)
    return typeof value === 'string' ? { kind: 'text', text: value } : { kind: 'word', word: JSON.stringify(value) };
  const exact = written.get(value);
  if (exact !== undefined) return exact;
  if (Array.isArray(value)) return { kind: 'array', items: value.map((item) => writtenValue(item ?? null)) };
  const entries = Object.entries(value).filter(([, item]) => item !== undefined);
  return { kind: 'object', entries: new Map(entries.map(([key, item]) => [key, writtenValue(item)])) };
}

/** One member of an object as JSON, in its written form. */
export function memberAsWritten(object: Readonly<Record<string, unknown>>, key: string): string {
  const exact = written.get(object);
  const member = exact?.kind === 'object' ? exact.entries.get(key) : undefined;
  return member === undefined ? stringifyExact(object[key]) : writtenCompactly(member);
}

/** JSON.stringify without blanks, with numbers and keys as they were parsed. */
export function stringifyExact(value: unknown): string {
  return hasWritten && hasExact(value) ? write(value) : JSON.stringify(value);
}

/** The written form of an object or a list; undefined if it equals JavaScript's own. */
export function writtenOf(value: object): WrittenJson | undefined {
  return written.get(value);
}

/** Finds everything that JavaScript might write differently, and some more. */
const mayChange = /\d{16}|\.\d*0(?!\d)|\d[eE][+-]?\d|-0|"\d+"\s*:/;

/** Stores the written form of a value if JavaScript would write it differently; returns whether that is so. */
function note(value: unknown, exact: WrittenJson): boolean {
  if (exact.kind === 'text') return false;
  if (exact.kind === 'word') return typeof value === 'number' && JSON.stringify(value) !== exact.word;
  const isChanged =
    exact.kind === 'array'
      ? exact.items.map((item, i) => note((value as unknown[])[i], item)).includes(true)
      : [...exact.entries].map(([key, item]) => note((value as Fields)[key], item)).includes(true) ||
        Object.keys(value as Fields).join('\n') !== [...exact.entries.keys()].join('\n');
  if (isChanged) written.set(value as object, exact);
  hasWritten ||= isChanged;
  return isChanged;
}

type Fields = Readonly<Record<string, unknown>>;

function hasExact(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false;
  if (written.has(value)) return true;
  if (Array.isArray(value)) return value.some((item) => typeof item === 'object' && hasExact(item));
  return Object.values(value).some(hasExact);
}

function write(value: unknown): string {
  if (typeof value !== 'object' || value === null || !hasExact(value)) return JSON.stringify(value) ?? 'null';
  const exact = written.get(value);
  if (exact !== undefined) return writtenCompactly(exact);
  if (Array.isArray(value)) return `[${value.map(write).join(',')}]`;
  const entries = Object.entries(value).filter(([, item]) => item !== undefined);
  return `{${entries.map(([key, item]) => `${JSON.stringify(key)}:${write(item)}`).join(',')}}`;
}
