import { quoted, shortened } from './steering.ts';
import { nearestName } from './suggest.ts';

/*
 * Shapes check data from outside in code that cannot load schemas: inputs of workflows and messages to them. A shape
 * describes the expected value and reports every place where a value differs. It never throws, whatever the value is.
 */

export interface Shape {
  /** Description for messages, such as `a whole number from 0`. */
  readonly expected: string;
  /** The field may be left out of an object. */
  readonly isOptional?: true;
  /** The field is not listed in messages, because people do not write it. */
  readonly isUnnamed?: true;
  /** Returns one line for each problem; `at` is the path of the value, '' for the whole input. */
  problems(value: unknown, at: string): readonly string[];
}

/** Replaces a payload that could not be decoded. */
export class UnreadablePayload {
  readonly encoding: string;
  readonly why: string;

  constructor(encoding: string, why: string) {
    this.encoding = encoding;
    this.why = why;
  }
}

const shownNames = 5;
/** A parser's reason quotes its input. */
const whyChars = 200;
/** At most this many problems of one list are described. */
const problemsMax = 5;
const depthMax = 20;

/** Describes a received value in a few words, never in full. */
export function received(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (value === null) return 'null';
  if (value instanceof UnreadablePayload)
    return `data that is not JSON (encoding ${shortened(value.encoding)}: ${shortened(value.why, whyChars)})`;
  if (ArrayBuffer.isView(value)) return `${value.byteLength} bytes that are not JSON (encoding binary/plain)`;
  if (Array.isArray(value)) return `a list of ${value.length}`;
  if (typeof value === 'object') {
    const names = Object.keys(value);
    if (names.length === 0) return 'an empty object';
    const more = names.length > shownNames ? ', …' : '';
    return `an object with ${names
      .slice(0, shownNames)
      .map((name) => shortened(name))
      .join(', ')}${more}`;
  }
  if (typeof value === 'string') return quoted(value);
  const isNamed = typeof value === 'number' || typeof value === 'bigint' || typeof value === 'boolean';
  return isNamed ? `${value} (a ${typeof value})` : `a ${typeof value}`;
}

function wrong(expected: string, value: unknown, at: string): string[] {
  const came = value === undefined && at !== '' ? 'is missing' : `received ${received(value)}`;
  return [at === '' ? `expected ${expected}, ${came}` : `${at}: expected ${expected}, ${came}`];
}

function shapeOf(expected: string, isRight: (value: unknown) => boolean): Shape {
  return { expected, problems: (value, at) => (isRight(value) ? [] : wrong(expected, value, at)) };
}

/** Names and paths contain no control characters. */
const printable = /^\P{Cc}+$/u;

export const anything: Shape = { expected: 'anything', problems: () => [] };
export const text = shapeOf('a text', (value) => typeof value === 'string');
export const flag = shapeOf('true or false', (value) => typeof value === 'boolean');
export const number = shapeOf('a number', (value) => Number.isFinite(value));
export const whole = wholeFrom0('a whole number from 0');
export const wholeOrAll = shapeOf(
  'a whole number from −1 (−1 = all)',
  (value) => Number.isSafeInteger(value) && Number(value) >= -1,
);

export function wholeFrom0(expected: string): Shape {
  return shapeOf(expected, (value) => Number.isSafeInteger(value) && Number(value) >= 0);
}

/** One line of text with at most `charsMax` characters. */
export function lineOfText(expected: string, charsMax: number): Shape {
  return shapeOf(
    expected,
    (value) => typeof value === 'string' && value.length <= charsMax && printable.test(value) && value.trim() !== '',
  );
}

export function textLike(expected: string, pattern: RegExp): Shape {
  return shapeOf(expected, (value) => typeof value === 'string' && pattern.test(value));
}

export function oneOf(...words: readonly string[]): Shape {
  const expected = words.map((word) => JSON.stringify(word)).join(' or ');
  return shapeOf(expected, (value) => typeof value === 'string' && words.includes(value));
}

export function optional(shape: Shape): Shape {
  const { expected } = shape;
  return {
    expected,
    isOptional: true,
    problems: (value, at) => (value === undefined ? [] : shape.problems(value, at)),
  };
}

/** A field that only Ratchet sends. */
export function unnamed(shape: Shape): Shape {
  return { ...shape, isUnnamed: true };
}

export function orNull(shape: Shape): Shape {
  return {
    ...shape,
    expected: `${shape.expected}, or null`,
    problems: (value, at) => (value === null ? [] : shape.problems(value, at)),
  };
}

export function listOf(item: Shape, expected = `a list, each ${item.expected}`): Shape {
  return {
    expected,
    problems(value, at) {
      if (!Array.isArray(value)) return wrong(expected, value, at);
      const found: string[] = [];
      for (const [i, one] of (value as readonly unknown[]).entries()) {
        if (found.length >= problemsMax) break;
        found.push(...item.problems(one, `${at}[${i}]`));
      }
      return found;
    },
  };
}

/** An object with arbitrary field names. */
export function recordOf(item: Shape, expected: string): Shape {
  return {
    expected,
    problems(value, at) {
      if (!isPlainObject(value)) return wrong(expected, value, at);
      const found: string[] = [];
      for (const [name, one] of Object.entries(value)) {
        if (found.length >= problemsMax) break;
        found.push(...item.problems(one, below(at, name)));
      }
      return found;
    },
  };
}

type Fields = Readonly<Record<string, Shape>>;

/** An object with these fields. Others are allowed, because another version of Ratchet may have sent them. */
export function fieldsOf(fields: Fields, expected = `an object with ${namesOf(fields)}`): Shape {
  return {
    expected,
    problems(value, at) {
      if (!isPlainObject(value)) return wrong(expected, value, at);
      return Object.entries(fields).flatMap(([name, shape]) => {
        const field = Object.hasOwn(value, name) ? value[name] : undefined;
        return field === undefined && shape.isOptional ? [] : shape.problems(field, below(at, name));
      });
    },
  };
}

/** An object as people write it: unknown fields are errors. */
export function onlyFieldsOf(fields: Fields): Shape {
  const lenient = fieldsOf(fields);
  const known = Object.keys(fields).filter((name) => fields[name]!.isUnnamed !== true);
  return {
    ...lenient,
    problems(value, at) {
      if (!isPlainObject(value)) return lenient.problems(value, at);
      const unknown = Object.keys(value).filter((name) => !Object.hasOwn(fields, name));
      return [
        ...unknown.slice(0, problemsMax).map((name) => unknownField(below(at, name), name, known)),
        ...lenient.problems(value, at),
      ];
    },
  };
}

function unknownField(at: string, name: string, known: readonly string[]): string {
  const near = nearestName(name, known);
  const meant = near === undefined ? '' : ` Did you mean ${near}?`;
  return `${at}: there is no such field.${meant} There are: ${known.join(', ')}`;
}

/** One of several shapes, chosen by the value. */
export function eitherBy(choose: (value: Readonly<Record<string, unknown>>) => Shape, expected: string): Shape {
  return {
    expected,
    problems: (value, at) => (isPlainObject(value) ? choose(value).problems(value, at) : wrong(expected, value, at)),
  };
}

/** A value that TOML can express, in its JSON form. */
export const tomlValue: Shape = {
  expected: 'a value as TOML has it: a text, a number, true or false, a list, or a table',
  problems: (value, at) => tomlProblems(value, at, 0),
};

function tomlProblems(value: unknown, at: string, depth: number): readonly string[] {
  if (depth > depthMax) return [`${at}: expected at most ${depthMax} tables within one another`];
  if (typeof value === 'number' && !Number.isFinite(value)) return wrong('a number that is not endless', value, at);
  if (typeof value === 'number' && Number.isInteger(value) && !Number.isSafeInteger(value) && Math.abs(value) < 1e21)
    return [`${at}: a number this large loses digits in JSON. Write it as a text: "${value}" with its own digits`];
  if (['string', 'boolean', 'number'].includes(typeof value)) return [];
  const inside = Array.isArray(value)
    ? (value as readonly unknown[]).map((one, i) => [`${at}[${i}]`, one] as const)
    : isPlainObject(value)
      ? Object.entries(value).map(([name, one]) => [below(at, name), one] as const)
      : null;
  if (inside === null) return wrong(tomlValue.expected, value, at);
  const found: string[] = [];
  for (const [place, one] of inside) {
    if (found.length >= problemsMax) break;
    found.push(...tomlProblems(one, place, depth + 1));
  }
  return found;
}

/** A TOML value as typed on a command line. Texts stay as they are; tables become JSON, which is merged into the existing table. */
export function asTyped(value: unknown): string {
  if (typeof value === 'string') return value;
  return isPlainObject(value) ? JSON.stringify(value) : inToml(value);
}

function inToml(value: unknown): string {
  if (Array.isArray(value)) return `[${(value as readonly unknown[]).map(inToml).join(', ')}]`;
  if (!isPlainObject(value)) return JSON.stringify(value);
  const entries = Object.entries(value).map(([name, one]) => `${JSON.stringify(name)} = ${inToml(one)}`);
  return `{ ${entries.join(', ')} }`;
}

/** Ordinals are expanded into a list, and no run has more than this. */
const ordinalsMax = 1_000_000;

/** Ordinals as ranges: `0-7,9`. */
export const ranges: Shape = shapeOf('ordinals as ranges, such as "0-7,9"', (value) => {
  if (typeof value !== 'string') return false;
  if (value === '') return true;
  let count = 0;
  for (const part of value.split(',')) {
    const match = /^(\d{1,15})(?:-(\d{1,15}))?$/.exec(part);
    if (match === null) return false;
    const [first, last] = [Number(match[1]), Number(match[2] ?? match[1])];
    if (last < first) return false;
    count += last - first + 1;
    if (count > ordinalsMax) return false;
  }
  return true;
});

export function isPlainObject(value: unknown): value is Readonly<Record<string, unknown>> {
  if (typeof value !== 'object' || value === null) return false;
  return !Array.isArray(value) && !ArrayBuffer.isView(value) && !(value instanceof UnreadablePayload);
}

function namesOf(fields: Fields): string {
  return Object.keys(fields)
    .filter((name) => !fields[name]!.isOptional)
    .join(', ');
}

function below(at: string, name: string): string {
  const shown = shortened(name);
  return at === '' ? shown : `${at}.${shown}`;
}
