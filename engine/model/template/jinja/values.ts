import { RatchetError } from '../../../../core/errors.ts';
import { writtenOf } from '../../../../core/exact-json.ts';
import type { WrittenJson } from '../../../../core/written-json.ts';
import type { TemplateMeter } from '../template-meter.ts';

/** A value of the template language, which is Python's: whole numbers apart from floats, lists apart from tuples and generators. */
export type Value =
  | null
  | boolean
  /** A whole number; a bigint if it exceeds exact JavaScript numbers. */
  | number
  | bigint
  | string
  | Float
  | Safe
  | Undefined
  | List
  | Dict
  | Callable
  | Members;

export class Float {
  readonly value: number;

  constructor(value: number) {
    this.value = value;
  }
}

/** A text marked as HTML: texts joined to it are escaped. */
export class Safe {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }
}

/** A value that is missing. Printing it gives nothing; most other uses are refused with the message. */
export class Undefined {
  readonly message: string;

  constructor(message: string) {
    this.message = message;
  }
}

type ListKind =
  | 'list'
  | 'tuple'
  | 'range'
  | 'dict_keys'
  | 'dict_values'
  | 'dict_items'
  | 'generator'
  | 'list_reverseiterator';

/** Items in an order. Generators and reversed lists can be walked through once. */
export class List {
  readonly kind: ListKind;
  items: readonly Value[];
  /** Names of the items of a tuple, as the pairs of groupby have them. */
  readonly names: readonly string[];

  constructor(kind: ListKind, items: readonly Value[], names: readonly string[] = []) {
    this.kind = kind;
    this.items = items;
    this.names = names;
  }

  get isOnce(): boolean {
    return this.kind === 'generator' || this.kind === 'list_reverseiterator';
  }

  /** Returns the items; a generator is exhausted afterwards. */
  take(): readonly Value[] {
    const { items } = this;
    if (this.isOnce) this.items = [];
    return items;
  }
}

export type Key = string | number | bigint | boolean | null;

export class Dict {
  readonly entries: Map<Key, Value>;

  constructor(entries: Map<Key, Value> = new Map()) {
    this.entries = entries;
  }
}

export interface Arguments {
  readonly positional: readonly Value[];
  readonly named: ReadonlyMap<string, Value>;
}

export class Callable {
  readonly name: string;
  readonly call: (given: Arguments) => Value;

  constructor(name: string, call: (given: Arguments) => Value) {
    this.name = name;
    this.call = call;
  }
}

/** A value with attributes: `loop`, a namespace, a cycler. */
export class Members {
  readonly type: string;
  readonly member: (name: string) => Value | undefined;
  readonly call: ((given: Arguments) => Value) | null;
  /** A namespace's attribute; no other value can be assigned to. */
  readonly fields: Map<string, Value> | null;

  constructor(
    type: string,
    {
      member,
      call = null,
      fields = null,
    }: {
      readonly member: (name: string) => Value | undefined;
      readonly call?: ((given: Arguments) => Value) | null;
      readonly fields?: Map<string, Value> | null;
    },
  ) {
    this.type = type;
    this.member = member;
    this.call = call;
    this.fields = fields;
  }
}

export const listOf = (items: readonly Value[]): List => new List('list', items);
export const tupleOf = (...items: readonly Value[]): List => new List('tuple', items);

/** A whole number in the form that {@link Value} gives it. */
export function intOf(value: bigint): number | bigint {
  const small = Number(value);
  return Number.isSafeInteger(small) ? small : value;
}

export function isText(value: Value | undefined): value is string | Safe {
  return typeof value === 'string' || value instanceof Safe;
}

export function isInt(value: Value | undefined): value is number | bigint | boolean {
  return typeof value === 'number' || typeof value === 'bigint' || typeof value === 'boolean';
}

export function isNumber(value: Value | undefined): value is number | bigint | boolean | Float {
  return isInt(value) || value instanceof Float;
}

export function numberOf(value: number | bigint | boolean | Float): number {
  return value instanceof Float ? value.value : Number(value);
}

/** The name of a value's type in Python. */
export function typeName(value: Value): string {
  if (value === null) return 'NoneType';
  if (typeof value === 'string') return 'str';
  if (value instanceof Safe) return 'Markup';
  if (typeof value === 'boolean') return 'bool';
  if (isInt(value)) return 'int';
  if (value instanceof Float) return 'float';
  if (value instanceof Undefined) return 'Undefined';
  if (value instanceof List) return value.kind;
  if (value instanceof Dict) return 'dict';
  return value instanceof Members ? value.type : 'function';
}

export function isTrue(value: Value): boolean {
  if (value === null || value instanceof Undefined) return false;
  if (value instanceof Float) return value.value !== 0;
  if (value instanceof Safe) return value.text !== '';
  if (value instanceof List) return value.isOnce || value.items.length > 0;
  if (value instanceof Dict) return value.entries.size > 0;
  return value instanceof Callable || value instanceof Members ? true : Boolean(value);
}

/** Throws for an undefined value. */
export function given<T extends Value>(value: T): Exclude<T, Undefined> {
  if (value instanceof Undefined) throw new Error(value.message);
  return value as Exclude<T, Undefined>;
}

const surrogates = /[\ud800-\udfff]/;

/** Characters as Python counts them: code points. */
export function charactersIn(text: string): readonly string[] {
  return surrogates.test(text) ? Array.from(text) : text.split('');
}

export function lengthOfText(text: string): number {
  return charactersIn(text).length;
}

/** Number of items, entries or UTF-16 units, by which costs are counted. */
export function sizeOf(value: Value): number {
  if (typeof value === 'string') return value.length;
  if (value instanceof Safe) return value.text.length;
  if (value instanceof List) return value.items.length;
  return value instanceof Dict ? value.entries.size : 0;
}

/** Bytes of a value, and of a place in a list. */
export const [valueBytes, placeBytes] = [96, 8];
/** Deeper than any schema of tools, and shallow enough for the stack. */
export const nestingMax = 200;

/** Items that a loop, a filter or `in` walks through; null for a value that has none. */
export function itemsOrNull(value: Value, meter: TemplateMeter, what: string): readonly Value[] | null {
  if (value instanceof Undefined) return [];
  if (value instanceof List) return value.take();
  if (value instanceof Dict) {
    meter.items(value.entries.size, placeBytes, what);
    return [...value.entries.keys()];
  }
  if (!isText(value)) return null;
  const text = typeof value === 'string' ? value : value.text;
  meter.items(text.length, valueBytes, what);
  return charactersIn(text);
}

export function itemsOf(value: Value, meter: TemplateMeter, what: string): readonly Value[] {
  const items = itemsOrNull(value, meter, what);
  if (items === null) throw new Error(`${what}: '${typeName(value)}' object is not iterable.`);
  return items;
}

export function keyOf(value: Value): Key {
  if (value instanceof Float && Number.isSafeInteger(value.value)) return value.value;
  if (value === null || typeof value === 'string' || isInt(value)) return value;
  if (value instanceof Safe) return value.text;
  if (value instanceof Undefined) throw new Error(value.message);
  throw new Error(`a map with a key of type ${typeName(value)} is not supported.`);
}

/** Python's `==`. */
export function equal(left: Value, right: Value, meter: TemplateMeter, depth = 0): boolean {
  const what = 'the operator "=="';
  meter.spend(1, what);
  if (left === right) return true;
  if (isText(left) && isText(right)) {
    const [a, b] = [textOf(left), textOf(right)];
    if (a.length !== b.length) return false;
    meter.read(a.length, what);
    return a === b;
  }
  if (isNumber(left) && isNumber(right)) return compareNumbers(left, right) === 0;
  if (left instanceof Undefined && right instanceof Undefined) return true;
  if (depth > nestingMax) throw new Error(`${what} of lists and maps more than ${nestingMax} deep in one another.`);
  if (left instanceof List && right instanceof List) {
    if (left.kind !== right.kind || left.isOnce || left.items.length !== right.items.length) return false;
    return left.items.every((item, i) => equal(item, right.items[i]!, meter, depth + 1));
  }
  if (left instanceof Dict && right instanceof Dict) {
    if (left.entries.size !== right.entries.size) return false;
    for (const [key, item] of left.entries) {
      const other = right.entries.get(key);
      if (other === undefined || !equal(item, other, meter, depth + 1)) return false;
    }
    return true;
  }
  return false;
}

export function textOf(value: string | Safe): string {
  return typeof value === 'string' ? value : value.text;
}

function compareNumbers(left: number | bigint | boolean | Float, right: number | bigint | boolean | Float): number {
  const [a, b] = [left, right].map((each) => (each instanceof Float ? each.value : each));
  return a! < b! ? -1 : a! > b! ? 1 : a == b ? 0 : Number.NaN; // JavaScript compares bigints with numbers exactly
}

/** Order of two values, NaN if they have none, such as values of different types. */
export function compare(left: Value, right: Value, operator: string, meter: TemplateMeter, depth = 0): number {
  const what = `the operator "${operator}"`;
  meter.spend(1, what);
  if (isText(left) && isText(right)) {
    meter.read(Math.min(sizeOf(left), sizeOf(right)), what);
    return compareTexts(textOf(left), textOf(right));
  }
  if (isNumber(left) && isNumber(right)) return compareNumbers(left, right);
  given(left);
  given(right);
  const isOrdered = left instanceof List && right instanceof List && left.kind === right.kind;
  if (!isOrdered || (left.kind !== 'list' && left.kind !== 'tuple'))
    throw new Error(`'${operator}' not supported between '${typeName(left)}' and '${typeName(right)}'.`);
  if (depth > nestingMax) throw new Error(`${what} of lists more than ${nestingMax} deep in one another.`);
  for (const [i, item] of left.items.entries()) {
    if (i >= right.items.length) return 1;
    if (!equal(item, right.items[i]!, meter, depth + 1))
      return compare(item, right.items[i]!, operator, meter, depth + 1);
  }
  return left.items.length - right.items.length;
}

/** Compares by code points; `<` of JavaScript compares UTF-16 units. */
function compareTexts(left: string, right: string): number {
  const length = Math.min(left.length, right.length);
  for (let i = 0; i < length; i++) {
    const [a, b] = [left.charCodeAt(i), right.charCodeAt(i)];
    if (a === b) continue;
    const isHigh = (unit: number): boolean => unit >= 0xd800 && unit < 0xe000;
    if (isHigh(a) !== isHigh(b)) return isHigh(a) ? 1 : -1;
    return a - b;
  }
  return left.length - right.length;
}

/** A value of JavaScript as the template sees it. Whole numbers are ints, as in JSON without a point, unless it is known how they were written. */
export function valueOf(given: unknown): Value {
  if (given === null || typeof given === 'string' || typeof given === 'boolean') return given;
  if (typeof given === 'number') return Number.isInteger(given) ? intOf(BigInt(given)) : new Float(given);
  if (typeof given === 'bigint') return intOf(given);
  const written = typeof given === 'object' ? writtenOf(given) : undefined;
  if (written !== undefined) return valueAsWritten(written);
  if (Array.isArray(given)) return listOf(given.map((each) => valueOf(each === undefined ? null : each)));
  if (given instanceof Float || given instanceof Dict || given instanceof List) return given;
  if (typeof given !== 'object') throw new TypeError(`expected a value of JSON, got ${typeof given}`);
  const entries = new Map<Key, Value>();
  const pairs = given instanceof Map ? (given as Map<string, unknown>).entries() : Object.entries(given);
  for (const [key, each] of pairs) if (each !== undefined) entries.set(key, valueOf(each));
  return new Dict(entries);
}

/** The entries of an object of JavaScript, each as the template sees it. A copy of the object would have lost how its numbers were written. */
export function entriesAsWritten(given: Readonly<Record<string, unknown>>): readonly [string, unknown][] {
  const written = writtenOf(given);
  if (written?.kind !== 'object') return Object.entries(given);
  return [...written.entries].map(([name, item]) => [name, valueAsWritten(item)]);
}

/** Digits of the longest whole number that Python reads. */
const digitsMax = 4_300;

/** A value of JSON as Python reads it: a number is an int unless it has a point or an exponent. */
export function valueAsWritten(written: WrittenJson): Value {
  switch (written.kind) {
    case 'object':
      return new Dict(new Map([...written.entries].map(([key, item]) => [key, valueAsWritten(item)])));
    case 'array':
      return listOf(written.items.map(valueAsWritten));
    case 'text':
      return written.text;
    default:
      return wordValue(written.word);
  }
}

function wordValue(word: string): Value {
  if (word === 'null') return null;
  if (word === 'true' || word === 'false') return word === 'true';
  if (!/^-?\d+$/.test(word)) return new Float(Number(word));
  if (word.length > digitsMax)
    throw new RatchetError(
      'InferenceRejected',
      `Expected whole numbers of up to ${digitsMax} digits, got one of more.`,
    );
  return intOf(BigInt(word));
}
