import type { TemplateMeter } from '../template-meter.ts';
import { floatText } from './numbers.ts';
import {
  Dict,
  Float,
  isInt,
  isNumber,
  isText,
  type Key,
  List,
  Members,
  nestingMax,
  Safe,
  textOf,
  typeName,
  Undefined,
  type Value,
} from './values.ts';

/** Most characters that one can become: U+10FFFF is \U0010ffff in a repr. */
const growthMax = 10;

/** Collects a text; each piece is counted before it is kept. */
class Pieces {
  readonly meter: TemplateMeter;
  readonly what: string;
  readonly #pieces: string[] = [];

  constructor(meter: TemplateMeter, what: string) {
    this.meter = meter;
    this.what = what;
  }

  add(piece: string): void {
    this.meter.text(piece.length, this.what);
    this.#pieces.push(piece);
  }

  get text(): string {
    return this.#pieces.join('');
  }

  checkDepth(depth: number): void {
    this.meter.spend(1, this.what);
    if (depth > nestingMax)
      throw new Error(`${this.what} of lists and maps more than ${nestingMax} deep in one another.`);
  }
}

/** Python's str(). */
export function shown(value: Value, meter: TemplateMeter, what: string): string {
  if (typeof value === 'string') return value;
  if (value instanceof Safe) return value.text;
  if (value instanceof Undefined) return '';
  const pieces = new Pieces(meter, what);
  writeRepr(value, pieces, 0);
  return pieces.text;
}

/** Python's repr(). */
export function repr(value: Value, meter: TemplateMeter, what: string): string {
  const pieces = new Pieces(meter, what);
  writeRepr(value, pieces, 0);
  return pieces.text;
}

const around: Readonly<Record<string, readonly [string, string]>> = {
  list: ['[', ']'],
  tuple: ['(', ')'],
  dict_keys: ['dict_keys([', '])'],
  dict_values: ['dict_values([', '])'],
  dict_items: ['dict_items([', '])'],
};

function writeRepr(value: Value, into: Pieces, depth: number): void {
  into.checkDepth(depth);
  if (value === null) return into.add('None');
  if (typeof value === 'boolean') return into.add(value ? 'True' : 'False');
  if (isInt(value)) return into.add(String(value));
  if (value instanceof Float) return into.add(floatText(value.value));
  if (isText(value)) {
    const text = quoted(textOf(value), into);
    return into.add(value instanceof Safe ? `Markup(${text})` : text);
  }
  if (value instanceof Undefined) return into.add('Undefined');
  if (value instanceof Members && value.fields) {
    into.add('<Namespace ');
    writeDictRepr(value.fields, into, depth);
    return into.add('>');
  }
  if (value instanceof Dict) return writeDictRepr(value.entries, into, depth);
  if (value instanceof List) return writeListRepr(value, into, depth);
  throw new Error(`writing out a value of type ${typeName(value)} is not supported.`);
}

function writeListRepr({ kind, items }: List, into: Pieces, depth: number): void {
  if (kind === 'range') return into.add(rangeText(items as readonly number[]));
  const brackets = around[kind];
  if (!brackets) throw new Error(`writing out a value of type ${kind} is not supported.`);
  into.add(brackets[0]);
  for (const [i, item] of items.entries()) {
    if (i > 0) into.add(', ');
    writeRepr(item, into, depth + 1);
  }
  if (kind === 'tuple' && items.length === 1) into.add(',');
  into.add(brackets[1]);
}

/** Writes the bounds of a range, which its numbers show unless it is empty. */
function rangeText(numbers: readonly number[]): string {
  const [first, second] = numbers;
  if (first === undefined) throw new Error('writing out an empty range is not supported.');
  const step = second === undefined ? 1 : second - first;
  const stop = numbers.at(-1)! + Math.sign(step);
  if (Math.abs(step) !== 1) throw new Error('writing out a range with steps is not supported.');
  return step === 1 ? `range(${first}, ${stop})` : `range(${first}, ${stop}, ${step})`;
}

function writeDictRepr(entries: ReadonlyMap<Key, Value>, into: Pieces, depth: number): void {
  into.add('{');
  let isFirst = true;
  for (const [key, item] of entries) {
    if (!isFirst) into.add(', ');
    isFirst = false;
    writeRepr(key, into, depth + 1);
    into.add(': ');
    writeRepr(item, into, depth + 1);
  }
  into.add('}');
}

const plain = /^[\x20-\x26\x28-\x5b\x5d-\x7e]*$/;
const named: Readonly<Record<string, string>> = { '\n': String.raw`\n`, '\r': String.raw`\r`, '\t': String.raw`\t` };

function quoted(text: string, into: Pieces): string {
  into.meter.read(text.length, into.what);
  if (plain.test(text)) return `'${text}'`;
  into.meter.text(text.length * growthMax, into.what);
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const inside = text.replaceAll(/[^\x20-\x26\x28-\x5b\x5d-\x7e]/gu, (character) => {
    if (character === quote || character === '\\') return `\\${character}`;
    if (named[character] !== undefined) return named[character];
    const point = character.codePointAt(0)!;
    if (point > 0x7f ? !/[\p{C}\p{Z}]/u.test(character) : point >= 0x20 && point < 0x7f) return character;
    const hex = point.toString(16);
    if (point < 0x1_00) return `\\x${hex.padStart(2, '0')}`;
    return point < 0x1_00_00 ? `\\u${hex.padStart(4, '0')}` : `\\U${hex.padStart(8, '0')}`;
  });
  return `${quote}${inside}${quote}`;
}

interface JsonForm {
  readonly isAscii: boolean;
  /** null: on one line. */
  readonly indent: string | null;
  readonly separators: readonly [item: string, key: string];
  readonly isSorted: boolean;
}

/** Python's json.dumps(). */
export function jsonOf(value: Value, form: JsonForm, meter: TemplateMeter, what: string): string {
  const pieces = new Pieces(meter, what);
  writeJson(value, form, pieces, 0);
  return pieces.text;
}

function writeJson(value: Value, form: JsonForm, into: Pieces, depth: number): void {
  into.checkDepth(depth);
  if (isText(value)) return into.add(jsonText(textOf(value), form, into));
  if (value === null || typeof value === 'boolean' || isNumber(value)) return into.add(jsonScalar(value));
  if (value instanceof List && (value.kind === 'list' || value.kind === 'tuple')) {
    return writeJsonItems('[', ']', [...value.items], form, into, depth, (item) => {
      writeJson(item, form, into, depth + 1);
    });
  }
  if (!(value instanceof Dict))
    throw new Error(`${into.what}: Object of type ${typeName(value)} is not JSON serializable.`);
  into.meter.items(value.entries.size, 96, into.what);
  const entries = [...value.entries];
  if (form.isSorted) sortEntries(entries, into);
  return writeJsonItems('{', '}', entries, form, into, depth, ([key, item]) => {
    into.add(jsonText(typeof key === 'string' ? key : jsonScalar(key), form, into));
    into.add(form.separators[1]);
    writeJson(item, form, into, depth + 1);
  });
}

function sortEntries(entries: [Key, Value][], into: Pieces): void {
  if (entries.some(([key]) => typeof key !== 'string')) throw new Error(`${into.what}: sort_keys needs texts as keys.`);
  const characters = entries.reduce((sum, [key]) => sum + String(key).length, 0);
  into.meter.spend((entries.length + characters / 16) * Math.ceil(Math.log2(entries.length + 2)), into.what);
  entries.sort(([left], [right]) => (String(left) < String(right) ? -1 : 1));
}

function writeJsonItems<T>(
  open: string,
  close: string,
  items: readonly T[],
  { indent, separators }: JsonForm,
  into: Pieces,
  depth: number,
  write: (item: T) => void,
): void {
  into.add(open);
  const line = (levels: number): void => {
    if (indent === null) return;
    into.meter.text(indent.length * levels, into.what);
    into.add(`\n${indent.repeat(levels)}`);
  };
  for (const [i, item] of items.entries()) {
    if (i > 0) into.add(separators[0]);
    line(depth + 1);
    write(item);
  }
  if (items.length > 0) line(depth);
  into.add(close);
}

function jsonScalar(value: null | boolean | number | bigint | Float): string {
  if (!(value instanceof Float)) return String(value);
  if (Number.isFinite(value.value)) return floatText(value.value);
  return Number.isNaN(value.value) ? 'NaN' : value.value > 0 ? 'Infinity' : '-Infinity';
}

const shortEscapes: Readonly<Record<string, string>> = {
  '"': String.raw`\"`,
  '\\': String.raw`\\`,
  '\n': String.raw`\n`,
  '\r': String.raw`\r`,
  '\t': String.raw`\t`,
  '\f': String.raw`\f`,
  '\b': String.raw`\b`,
};

function jsonText(text: string, { isAscii }: JsonForm, into: Pieces): string {
  into.meter.read(text.length, into.what);
  const escaped = isAscii ? /[^\x20\x21\x23-\x5b\x5d-\x7e]/g : new RegExp(String.raw`[\"\\\x00-\x1f]`, 'g');
  if (text.search(escaped) < 0) return `"${text}"`;
  into.meter.text(text.length * growthMax, into.what);
  const inside = text.replaceAll(
    escaped,
    (unit) => shortEscapes[unit] ?? `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
  return `"${inside}"`;
}

const htmlEscapes: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '>': '&gt;',
  '<': '&lt;',
  "'": '&#39;',
  '"': '&#34;',
};

/** Escapes HTML. */
export function escaped(value: Value, meter: TemplateMeter, what: string): Safe {
  if (value instanceof Safe) return value;
  const text = shown(value, meter, what);
  meter.text(text.length * growthMax, what);
  return new Safe(text.replaceAll(/[&><'"]/g, (character) => htmlEscapes[character]!));
}
