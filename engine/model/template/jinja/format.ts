import type { TemplateMeter } from '../template-meter.ts';
import { fixed, general, scientific } from './numbers.ts';
import { repr, shown } from './texts.ts';
import {
  charactersIn,
  Dict,
  Float,
  given,
  isInt,
  isNumber,
  isText,
  lengthOfText,
  List,
  numberOf,
  sizeOf,
  textOf,
  typeName,
  type Value,
} from './values.ts';

const percentField = /%(?:\(([^)]*)\))?([-#0 +]*)(\*|\d+)?(?:\.(\*|\d+))?[hlL]?([\s\S]?)/g;

/** Python's `text % values`. */
export function percentFormat(format: string, given: Value, meter: TemplateMeter): string {
  const what = 'the operator "%"';
  const isTuple = given instanceof List && given.kind === 'tuple';
  const values = isTuple ? given.items : [given];
  let next = 0;
  meter.read(format.length, what);
  let length = 0;
  const text = format.replaceAll(
    percentField,
    (whole, key: string | undefined, flags: string, width = '0', precision: string | undefined, type: string) => {
      if (type === '%') return '%';
      if (width === '*' || precision === '*') throw new Error(`${what} with a width of "*" is not supported.`);
      if (key === undefined && next >= values.length) throw new Error('not enough arguments for format string.');
      const value = key === undefined ? values[next++]! : fieldOf(given, key);
      length += Number(width) + Number(precision ?? 0);
      meter.text(Number(width) + Number(precision ?? 0), what);
      const written = percentValue(value, type, { precision, flags, whole }, meter);
      length += written.length;
      meter.text(written.length, what);
      return padded(written, flags, Number(width), type);
    },
  );
  const isAllUsed = next >= values.length || given instanceof Dict || (!isTuple && given instanceof List);
  if (!isAllUsed) throw new Error('not all arguments converted during string formatting.');
  meter.text(length + format.length, what);
  return text;
}

function fieldOf(of: Value, key: string): Value {
  const found = of instanceof Dict ? of.entries.get(key) : undefined;
  if (found === undefined) throw new Error(`the operator "%": there is no "${key}".`);
  return found;
}

function percentValue(
  value: Value,
  type: string,
  { precision, flags, whole }: { precision: string | undefined; flags: string; whole: string },
  meter: TemplateMeter,
): string {
  const what = 'the operator "%"';
  if (type === 's' || type === 'r') {
    const text = type === 's' ? shown(value, meter, what) : repr(value, meter, what);
    return precision === undefined ? text : charactersIn(text).slice(0, Number(precision)).join('');
  }
  if (!isNumber(given(value))) throw new Error(`%${type} format: a number is required, not ${typeName(value)}.`);
  const sign = flags.includes('+') ? '+' : flags.includes(' ') ? ' ' : '';
  const signed = (text: string): string => (text.startsWith('-') ? text : sign + text);
  if ('diu'.includes(type) && type !== '') {
    const int = value instanceof Float ? BigInt(Math.trunc(value.value)) : BigInt(value as number);
    if (precision === undefined) return signed(String(int));
  }
  if ('xXo'.includes(type) && type !== '' && isInt(value) && precision === undefined && !flags.includes('#'))
    return signed(inBase(BigInt(value), type));
  if ('fFeEgG'.includes(type) && type !== '' && !flags.includes('#'))
    return signed(floatAs(numberOf(value as Float), type, Number(precision ?? 6)));
  throw new Error(`${what} with "${whole}" is not supported.`);
}

function inBase(value: bigint, type: string): string {
  const text = value.toString(type === 'o' ? 8 : type === 'b' ? 2 : 16);
  return type === 'X' ? text.toUpperCase() : text;
}

function floatAs(value: number, type: string, precision: number): string {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? 'nan' : value > 0 ? 'inf' : '-inf';
  if (precision > 100) throw new Error('a float with more than 100 places is not supported.');
  const lower = type.toLowerCase();
  const text =
    lower === 'f' ? fixed(value, precision) : lower === 'e' ? scientific(value, precision) : general(value, precision);
  return type === lower ? text : text.toUpperCase();
}

function padded(text: string, flags: string, width: number, type: string): string {
  const missing = Math.max(0, width - lengthOfText(text));
  if (flags.includes('-')) return text + ' '.repeat(missing);
  if (!flags.includes('0') || type === 's' || type === 'r') return ' '.repeat(missing) + text;
  return withZeros(text, missing);
}

function withZeros(text: string, count: number): string {
  const signs = /^[-+ ]/.exec(text)?.[0] ?? '';
  return signs + '0'.repeat(count) + text.slice(signs.length);
}

/** Python's `text.format(…)`. */
export function braceFormat(
  format: string,
  { positional, named }: { readonly positional: readonly Value[]; readonly named: ReadonlyMap<string, Value> },
  meter: TemplateMeter,
): string {
  const what = 'format()';
  let next = 0;
  meter.read(format.length, what);
  let out = '';
  for (const [, open, close, field = null, other] of format.matchAll(/(\{\{)|(\}\})|\{([^{}]*)\}|([^{}]+|[{}])/g)) {
    let piece = other ?? '';
    if (open) piece = '{';
    else if (close) piece = '}';
    else if (field !== null) {
      const [, name, conversion, spec = ''] =
        /^([^!:]*)(?:!([rsa]))?(?::([\s\S]*))?$/.exec(field) ?? unsupportedField(field);
      if (!/^\w*$/.test(name!) || conversion === 'a') unsupportedField(field);
      const value =
        name === '' ? positional[next++] : /^\d+$/.test(name!) ? positional[Number(name)] : named.get(name!);
      if (value === undefined) throw new Error(`format(): there is no value for "{${field}}".`);
      const shownValue =
        conversion === 'r' ? repr(value, meter, what) : conversion === 's' ? shown(value, meter, what) : value;
      piece = withSpec(shownValue, spec, meter);
    } else if (piece === '{' || piece === '}')
      throw new Error(`format(): Single '${piece}' encountered in format string.`);
    meter.text(piece.length, what);
    out += piece;
  }
  return out;
}

function unsupportedField(field: string): never {
  throw new Error(`format() with "{${field.slice(0, 50)}}" is not supported.`);
}

const specPattern = /^(?:([\s\S])?([<>^=]))?([-+ ])?(0)?(\d+)?([,_])?(?:\.(\d+))?([bcdeEfFgGnosxX%])?$/u;

/** A value by a format of Python such as `>8.2f`. */
function withSpec(value: Value, spec: string, meter: TemplateMeter): string {
  if (spec === '') return shown(value, meter, 'format()');
  const found = specPattern.exec(spec);
  if (!found) unsupportedField(`:${spec}`);
  const [, fill = found[4] ? '0' : ' ', align, sign = '-', zero, width = '0', comma, precision, type] = found;
  meter.text(Number(width) + Number(precision ?? 0), 'format()');
  const [text, isRight] = specified(value, { spec, sign, comma, precision, type }, meter);
  const missing = Math.max(0, Number(width) - lengthOfText(text));
  const side = align ?? (zero && isRight ? '=' : isRight ? '>' : '<');
  if (side === '=') {
    const signs = /^[-+ ]/.exec(text)?.[0] ?? '';
    return signs + fill.repeat(missing) + text.slice(signs.length);
  }
  const before = side === '>' ? missing : side === '^' ? Math.floor(missing / 2) : 0;
  return fill.repeat(before) + text + fill.repeat(missing - before);
}

function specified(
  value: Value,
  form: {
    readonly spec: string;
    readonly sign: string;
    readonly comma: string | undefined;
    readonly precision: string | undefined;
    readonly type: string | undefined;
  },
  meter: TemplateMeter,
): readonly [text: string, isRight: boolean] {
  const { spec, sign, comma, precision, type } = form;
  if (isText(value) && (type === undefined || type === 's') && !comma && sign === '-') {
    meter.text(sizeOf(value), 'format()');
    const text = textOf(value);
    return [precision === undefined ? text : charactersIn(text).slice(0, Number(precision)).join(''), false];
  }
  if (!isNumber(value) || typeof value === 'boolean') unsupportedField(`:${spec}`);
  const text = numberText(value, spec, precision, type);
  const signed = text.startsWith('-') || sign === '-' ? text : sign + text;
  return [comma ? signed.replace(/\d+/, (digits) => digits.replaceAll(/\B(?=(?:\d{3})+$)/g, comma)) : signed, true];
}

function numberText(
  value: number | bigint | Float,
  spec: string,
  precision: string | undefined,
  type: string | undefined,
): string {
  if (isInt(value) && precision === undefined && (type === undefined || 'dbxXo'.includes(type)))
    return type === undefined || type === 'd' ? String(value) : inBase(BigInt(value), type);
  if (type === '%') return `${fixed(numberOf(value) * 100, Number(precision ?? 6))}%`;
  if (type !== undefined && 'fFeEgG'.includes(type)) return floatAs(numberOf(value), type, Number(precision ?? 6));
  return unsupportedField(`:${spec}`);
}
