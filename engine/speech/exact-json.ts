import { parseWritten, type WrittenJson, writtenCompactly } from './written-json.ts';

/**
 * JSON whose numbers and order of keys survive JavaScript: 2.0 is another number than 2 in a prompt, 2^53 + 1 another one than 2^53, and a key
 * "10" stays where it was written. A value is a plain one; how it was written is kept beside it, for as long as it lives. A copy of an object
 * has lost this, the objects in it have not.
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

/** JSON.stringify without blanks, with numbers and keys as they were parsed. */
export function stringifyExact(value: unknown): string {
  return hasWritten && hasExact(value) ? write(value) : JSON.stringify(value);
}

/** How an object or a list was written; undefined where JavaScript's value of it says the same. */
export function writtenOf(value: object): WrittenJson | undefined {
  return written.get(value);
}

/** Finds whatever JavaScript might write otherwise, and some more. */
const mayChange = /\d{16}|\.\d*0(?!\d)|\d[eE][+-]?\d|-0|"\d+"\s*:/;

/** Keeps how a value was written, where JavaScript would write it otherwise; says whether that is so. */
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
