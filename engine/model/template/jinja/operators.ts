import type { TemplateMeter } from '../template-meter.ts';
import type { BinaryOperator, Comparison } from './nodes.ts';
import { percentFormat } from './format.ts';
import { escaped, shown } from './texts.ts';
import {
  charactersIn,
  compare,
  Dict,
  equal,
  Float,
  given,
  intOf,
  isInt,
  isNumber,
  isText,
  itemsOrNull,
  keyOf,
  List,
  numberOf,
  placeBytes,
  Safe,
  sizeOf,
  textOf,
  typeName,
  Undefined,
  type Value,
  valueBytes,
} from './values.ts';

/** Bits of the largest whole number; numbers of templates have some tens. */
const bitsMax = 4_096;

export function binary(operator: BinaryOperator, left: Value, right: Value, meter: TemplateMeter): Value {
  given(left);
  const what = `the operator "${operator}"`;
  if (operator === '%' && isText(left)) {
    if (left instanceof Safe) throw new Error(`${what} on a text marked as safe is not supported.`);
    return percentFormat(left, right, meter);
  }
  given(right);
  if (isNumber(left) && isNumber(right)) return arithmetic(operator, left, right);
  if (operator === '+') {
    if (isText(left) && isText(right)) return joined([left, right], meter, what);
    if (left instanceof List && right instanceof List && left.kind === right.kind && isPlain(left)) {
      meter.items(sizeOf(left) + sizeOf(right), placeBytes, what);
      return new List(left.kind, [...left.items, ...right.items]);
    }
  }
  if (operator === '*') {
    if (isInt(right) && (isText(left) || isPlain(left))) return repeated(left, numberOf(right), meter, what);
    if (isInt(left) && (isText(right) || isPlain(right))) return repeated(right, numberOf(left), meter, what);
  }
  const types = `'${typeName(left)}' and '${typeName(right)}'`;
  throw new Error(`unsupported operand type(s) for ${operator}: ${types}.`);
}

function isPlain(value: Value): value is List {
  return value instanceof List && (value.kind === 'list' || value.kind === 'tuple');
}

function repeated(of: string | Safe | List, count: number, meter: TemplateMeter, what: string): Value {
  const times = Math.max(0, count);
  if (of instanceof List) {
    meter.items(sizeOf(of) * times, placeBytes, what);
    return new List(of.kind, Array.from({ length: times }, () => of.items).flat());
  }
  meter.text(sizeOf(of) * times, what);
  const text = textOf(of).repeat(times);
  return of instanceof Safe ? new Safe(text) : text;
}

/** Texts one after the other; beside one that is marked as safe, the others are escaped. */
function joined(values: readonly (string | Safe)[], meter: TemplateMeter, what: string): string | Safe {
  if (values.some((value) => value instanceof Safe)) {
    const texts = values.map((value) => escaped(value, meter, what).text);
    meter.text(total(texts), what);
    return new Safe(texts.join(''));
  }
  meter.text(total(values as readonly string[]), what);
  return (values as readonly string[]).join('');
}

function total(texts: readonly string[]): number {
  return texts.reduce((sum, { length }) => sum + length, 0);
}

/** The operator `~`. */
export function concatenated(values: readonly Value[], meter: TemplateMeter): Value {
  const what = 'the operator "~"';
  return joined(
    values.map((value) => shown(value, meter, what)),
    meter,
    what,
  );
}

function arithmetic(operator: BinaryOperator, left: Value, right: Value): Value {
  if (isInt(left) && isInt(right)) return ofInts(operator, left, right);
  const [a, b] = [numberOf(left as Float), numberOf(right as Float)];
  switch (operator) {
    case '+':
      return new Float(a + b);
    case '-':
      return new Float(a - b);
    case '*':
      return new Float(a * b);
    case '**':
      if (a === 0 && b < 0) throw new Error('0.0 cannot be raised to a negative power.');
      if (a < 0 && !Number.isInteger(b)) throw new Error('a complex number is not supported.');
      return new Float(a ** b);
    default:
      if (b === 0) throw new Error('float division by zero.');
      if (operator === '/') return new Float(a / b);
      return new Float(operator === '//' ? Math.floor(a / b) : floatRemainder(a, b));
  }
}

function floatRemainder(a: number, b: number): number {
  const rest = a % b;
  if (rest === 0) return b < 0 ? -0 : 0;
  return rest < 0 === b < 0 ? rest : rest + b;
}

function ofInts(operator: BinaryOperator, left: number | bigint | boolean, right: number | bigint | boolean): Value {
  const [a, b] = [BigInt(left), BigInt(right)];
  switch (operator) {
    case '+':
      return checked(a + b);
    case '-':
      return checked(a - b);
    case '*':
      return checked(a * b);
    case '**':
      return power(a, b);
    default:
      if (b === 0n) throw new Error('division by zero.');
      if (operator === '/') return new Float(Number(a) / Number(b));
  }
  const rest = a % b;
  const isBelow = rest !== 0n && rest < 0n !== b < 0n; // Python rounds down, JavaScript towards zero
  if (operator === '%') return intOf(isBelow ? rest + b : rest);
  return intOf(isBelow ? a / b - 1n : a / b);
}

function power(base: bigint, exponent: bigint): Value {
  if (exponent < 0n) {
    if (base === 0n) throw new Error('0.0 cannot be raised to a negative power.');
    return new Float(Number(base) ** Number(exponent));
  }
  const bits = (base < 0n ? -base : base).toString(2).length * Number(exponent);
  if (bits > 2 * bitsMax && base !== 1n && base !== 0n && base !== -1n) throw tooLarge();
  return checked(
    base ** (base === 1n || base === 0n || base === -1n ? (exponent === 0n ? 0n : 2n - (exponent % 2n)) : exponent),
  );
}

function checked(value: bigint): number | bigint {
  const found = intOf(value);
  if (typeof found === 'bigint' && found.toString(16).length * 4 > bitsMax) throw tooLarge();
  return found;
}

function tooLarge(): Error {
  return new Error(`a whole number of more than ${bitsMax} bits is not supported.`);
}

export function negative(value: Value): Value {
  given(value);
  if (value instanceof Float) return new Float(-value.value);
  if (isInt(value)) return intOf(-BigInt(value));
  throw new Error(`bad operand type for unary -: '${typeName(value)}'.`);
}

export function positive(value: Value): Value {
  given(value);
  if (value instanceof Float) return value;
  if (isInt(value)) return intOf(BigInt(value));
  throw new Error(`bad operand type for unary +: '${typeName(value)}'.`);
}

export function compared(operator: Comparison, left: Value, right: Value, meter: TemplateMeter): boolean {
  switch (operator) {
    case '==':
      return equal(left, right, meter);
    case '!=':
      return !equal(left, right, meter);
    case 'in':
      return contains(left, right, meter);
    case 'not in':
      return !contains(left, right, meter);
    default: {
      const order = compare(left, right, operator, meter);
      if (operator === '<') return order < 0;
      if (operator === '<=') return order <= 0;
      return operator === '>' ? order > 0 : order >= 0;
    }
  }
}

/** `wanted in within`. */
function contains(wanted: Value, within: Value, meter: TemplateMeter): boolean {
  const what = 'the operator "in"';
  if (isText(within)) {
    if (!isText(given(wanted)))
      throw new Error(`'in <string>' requires string as left operand, not ${typeName(wanted)}.`);
    countSearch(meter, sizeOf(within), sizeOf(wanted), what);
    return textOf(within).includes(textOf(wanted as string));
  }
  if (within instanceof Dict) {
    meter.read(sizeOf(wanted), what);
    return !(wanted instanceof Undefined) && within.entries.has(keyOf(wanted));
  }
  const items = itemsOrNull(within, meter, what);
  if (items === null) throw new Error(`argument of type '${typeName(within)}' is not iterable.`);
  meter.spend(items.length, what);
  return items.some((item) => equal(wanted, item, meter));
}

/** Counts the search for one text in another: in the worst case, letter by letter at every position. */
export function countSearch(meter: TemplateMeter, within: number, wanted: number, what: string): void {
  meter.spend(Math.ceil(within / 64 + (within * wanted) / 1024), what);
}

/** `of[start:stop:step]`. */
export function slice(of: Value, bounds: readonly Value[], meter: TemplateMeter): Value {
  given(of);
  const what = 'a slice';
  if (!isText(of) && !(isPlain(of) || (of instanceof List && of.kind === 'range')))
    throw new Error(`'${typeName(of)}' object cannot be sliced.`);
  meter.hold(sizeOf(of) * (isText(of) ? valueBytes : placeBytes), what);
  meter.spend(Math.ceil(sizeOf(of) / 16), what);
  const [start, stop, step = 1] = bounds.map(boundOf);
  if (step === 0) throw new Error('slice step cannot be zero.');
  if (of instanceof List) return new List(of.kind, sliced(of.items, start, stop, step));
  const found = sliced(charactersIn(textOf(of)), start, stop, step).join('');
  return of instanceof Safe ? new Safe(found) : found;
}

function boundOf(bound: Value): number | undefined {
  if (bound === null) return undefined;
  if (isInt(given(bound))) return numberOf(bound as number);
  throw new Error(`slice indices must be integers or None, not ${typeName(bound)}.`);
}

function sliced<T>(all: readonly T[], start: number | undefined, stop: number | undefined, step: number): T[] {
  const [low, high] = step > 0 ? [0, all.length] : [-1, all.length - 1];
  const within = (bound: number): number => Math.min(Math.max(bound < 0 ? bound + all.length : bound, low), high);
  const first = start === undefined ? (step > 0 ? low : high) : within(start);
  const last = stop === undefined ? (step > 0 ? high : low) : within(stop);
  if (step === 1) return all.slice(first, Math.max(first, last));
  const found: T[] = [];
  for (let i = first; step > 0 ? i < last : i > last; i += step) found.push(all[i]!);
  return found;
}
