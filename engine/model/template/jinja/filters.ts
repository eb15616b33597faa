import type { TemplateMeter } from '../template-meter.ts';
import { attributeOf, itemOf } from './access.ts';
import { percentFormat } from './format.ts';
import { capitalized, lineEnd, orderOf, pairsOf, replaced, strip } from './methods.ts';
import { fixed } from './numbers.ts';
import { binary } from './operators.ts';
import { test } from './tests.ts';
import { escaped, jsonOf, shown } from './texts.ts';
import {
  type Arguments,
  charactersIn,
  compare,
  Dict,
  equal,
  Float,
  given as present,
  intOf,
  isInt,
  isNumber,
  isText,
  isTrue,
  itemsOf,
  List,
  lengthOfText,
  listOf,
  numberOf,
  placeBytes,
  Safe,
  sizeOf,
  textOf,
  tupleOf,
  typeName,
  Undefined,
  type Value,
  valueBytes,
} from './values.ts';

interface Use {
  readonly name: string;
  readonly what: string;
  readonly given: Arguments;
  readonly meter: TemplateMeter;
}

type Filter = (of: Value, use: Use) => Value;

/** Applies a filter of jinja2, or transformers' `tojson`. */
export function filtered(name: string, of: Value, given: Arguments, meter: TemplateMeter): Value {
  const filter = filters.get(name);
  if (!filter) throw new Error(`the filter "${name.slice(0, 100)}" is not supported.`);
  meter.spend(1 + given.positional.length + given.named.size, `the filter "${name}"`);
  return filter(of, { name, what: `the filter "${name}"`, given, meter });
}

function argument({ given: { positional, named } }: Use, place: number, name: string): Value | undefined {
  return place < positional.length ? positional[place] : named.get(name);
}

function numberArgument(use: Use, place: number, name: string, otherwise: number): number {
  const value = argument(use, place, name);
  if (value === undefined || value === null) return otherwise;
  if (isInt(value)) return numberOf(value);
  throw new Error(`${use.what} expects a whole number, got ${typeName(value)}.`);
}

function textArgument(use: Use, place: number, name: string, otherwise?: string): string {
  const value = argument(use, place, name) ?? otherwise;
  if (value === undefined) throw new Error(`${use.what} expects a text as argument.`);
  return shown(value, use.meter, use.what);
}

const flag = (use: Use, place: number, name: string): boolean => isTrue(argument(use, place, name) ?? false);

const items = (of: Value, { meter, what }: Use): readonly Value[] => itemsOf(of, meter, what);

/** A list that can be walked through once. */
const once = (found: readonly Value[]): List => new List('generator', found);

/** Reads `a.b.0` of each item, for the filters' `attribute=`. */
function getter(use: Use, path: Value | undefined, otherwise?: Value): (item: Value) => Value {
  if (path === undefined || path === null) return (item) => item;
  const steps: Value[] = isInt(path)
    ? [path]
    : textArgumentOf(path, use)
        .split('.')
        .map((step) => (/^\d+$/.test(step) ? intOf(BigInt(step)) : step));
  return (item) => {
    let found = item;
    for (const step of steps) {
      use.meter.spend(1, use.what);
      found = itemOf(found, step, use.meter);
      if (found instanceof Undefined && otherwise !== undefined) found = otherwise;
    }
    return found;
  };
}

function textArgumentOf(path: Value, use: Use): string {
  if (isText(path)) return textOf(path);
  throw new Error(`${use.what} expects the name of an attribute, got ${typeName(path)}.`);
}

function ignoringCase(value: Value, { meter, what }: Use): Value {
  if (!isText(value)) return value;
  meter.text(sizeOf(value), what);
  return textOf(value).toLowerCase();
}

/** Compares by several attributes one after the other: `attribute='role,content'`. */
function sortKey(use: Use): (item: Value) => Value {
  const path = argument(use, 2, 'attribute');
  const paths = isText(path) ? textOf(path).split(',') : [path];
  const parts = paths.map((each) => getter(use, each));
  const asIs = flag(use, 1, 'case_sensitive');
  return (item) => listOf(parts.map((read) => (asIs ? read(item) : ignoringCase(read(item), use))));
}

function sorted(
  values: readonly Value[],
  use: Use,
  how: { readonly keyOf: (item: Value) => Value; readonly isReversed: boolean },
): Value[] {
  const { meter, what } = use;
  meter.items(values.length, 256, what);
  const keyed = values.map((item) => ({ item, key: how.keyOf(item) }));
  const sign = how.isReversed ? -1 : 1;
  return keyed.sort((a, b) => sign * orderOf(a.key, b.key, meter)).map(({ item }) => item);
}

const text =
  (change: (text: string) => string): Filter =>
  (of, { meter, what }) => {
    const value = of instanceof Safe ? of.text : shown(of, meter, what);
    meter.text(value.length * 3, what);
    const found = change(value);
    return of instanceof Safe ? new Safe(found) : found;
  };

const extreme =
  (sign: 1 | -1): Filter =>
  (of, use) => {
    const keyOf = getter(use, argument(use, 1, 'attribute'));
    const key = (item: Value): Value => (flag(use, 0, 'case_sensitive') ? keyOf(item) : ignoringCase(keyOf(item), use));
    const all = items(of, use);
    if (all.length === 0) return new Undefined('No aggregated item, sequence was empty.');
    return all.reduce((best, item) => (sign * compare(key(item), key(best), '<', use.meter) < 0 ? item : best));
  };

/** select, reject, selectattr and rejectattr. */
const chosen =
  (byAttribute: boolean, wanted: boolean): Filter =>
  (of, use) => {
    const { positional, named } = use.given;
    const [first, ...others] = byAttribute ? positional.slice(1) : positional;
    const read = byAttribute ? getter(use, positional[0] ?? null) : (item: Value): Value => item;
    if (byAttribute && positional.length === 0) throw new Error(`${use.what} expects the name of an attribute.`);
    const name = first === undefined ? null : textArgumentOf(first, use);
    const all = isTrue(of) ? items(of, use) : [];
    use.meter.items(all.length, placeBytes, use.what);
    const isChosen = (value: Value): boolean =>
      name === null ? isTrue(value) : isTrue(test(name, value, { positional: others, named }, use.meter));
    return once(all.filter((item) => isChosen(read(item)) === wanted));
  };

function mapped(of: Value, use: Use): Value {
  const { positional, named } = use.given;
  const all = isTrue(of) ? items(of, use) : [];
  use.meter.items(all.length, placeBytes, use.what);
  if (positional.length === 0 && named.has('attribute'))
    return once(all.map(getter(use, named.get('attribute'), named.get('default'))));
  if (positional.length === 0) throw new Error('map requires a filter argument.');
  const name = textArgumentOf(positional[0]!, use);
  return once(all.map((item) => filtered(name, item, { positional: positional.slice(1), named }, use.meter)));
}

function tojson(of: Value, use: Use): Value {
  const indent = argument(use, 1, 'indent') ?? null;
  const separators = argument(use, 2, 'separators') ?? null;
  let [item, key] = [indent === null ? ', ' : ',', ': '];
  if (separators !== null) {
    const pair = items(separators, use);
    if (pair.length !== 2 || !pair.every(isText)) throw new Error('tojson: separators must be two texts.');
    [item, key] = pair.map((each) => textOf(each as string)) as [string, string];
  }
  const width = isInt(indent) ? Math.max(0, numberOf(indent)) : 0;
  use.meter.text(width, use.what);
  const form = {
    isAscii: flag(use, 0, 'ensure_ascii'),
    indent: isText(indent) ? textOf(indent) : indent === null ? null : ' '.repeat(width),
    separators: [item, key] as const,
    isSorted: flag(use, 3, 'sort_keys'),
  };
  return jsonOf(of, form, use.meter, use.what);
}

function joined(of: Value, use: Use): Value {
  const read = getter(use, argument(use, 1, 'attribute'));
  const separator = textArgument(use, 0, 'd', '');
  const texts: string[] = [];
  let length = 0;
  for (const item of items(of, use)) {
    const written = shown(read(item), use.meter, use.what);
    use.meter.text(written.length + separator.length, use.what);
    length += written.length;
    texts.push(written);
  }
  use.meter.read(length, use.what);
  return texts.join(separator);
}

function indented(of: Value, use: Use): Value {
  const width = argument(use, 0, 'width') ?? 4;
  const [isFirst, withBlank] = [flag(use, 1, 'first'), flag(use, 2, 'blank')];
  if (!isText(of)) throw new Error(`${use.what} expects a text, got ${typeName(of)}.`);
  const value = `${textOf(of)}\n`;
  const size = isText(width) ? sizeOf(width) : numberOf(width as number);
  const lines = value.split(lineEnd);
  if (lines.at(-1) === '') lines.pop();
  use.meter.items(lines.length, valueBytes, use.what);
  use.meter.text(value.length + (lines.length + 1) * size, use.what);
  const blanks = isText(width) ? textOf(width) : ' '.repeat(size);
  const [head = '', ...rest] = lines;
  const tail = rest.map((line) => (line !== '' || withBlank ? blanks + line : line));
  return (isFirst ? blanks : '') + [head, ...tail].join('\n');
}

function toInt(of: Value, use: Use): Value {
  const otherwise = argument(use, 0, 'default') ?? 0;
  present(of);
  if (isInt(of)) return intOf(BigInt(of));
  if (of instanceof Float) return Number.isFinite(of.value) ? intOf(BigInt(Math.trunc(of.value))) : otherwise;
  if (!isText(of)) return otherwise;
  const digits = strip(textOf(of), 'strip', null, use.meter);
  const inBase = numberArgument(use, 1, 'base', 10);
  if (inBase !== 10) return intInBase(digits, inBase) ?? floatAsInt(digits, otherwise);
  if (/^[-+]?\d+(?:_\d+)*$/.test(digits) && digits.length <= 1_000) {
    const value = BigInt(digits.replaceAll(/[_+-]/g, ''));
    return intOf(digits.startsWith('-') ? -value : value);
  }
  return floatAsInt(digits, otherwise);
}

function floatAsInt(digits: string, otherwise: Value): Value {
  const float = parsedFloat(digits);
  return float === null || !Number.isFinite(float) ? otherwise : intOf(BigInt(Math.trunc(float)));
}

const prefixes: Readonly<Record<number, RegExp>> = { 2: /^0b_?/, 8: /^0o_?/, 16: /^0x_?/ };

/** Python's int(text, base); null if the text is no number of that base. */
function intInBase(written: string, base: number): Value | null {
  const sign = written.startsWith('-') ? -1n : 1n;
  const text = written.toLowerCase().replace(/^[-+]/, '');
  const said =
    base === 0 ? Number(Object.keys(prefixes).find((each) => prefixes[Number(each)]!.test(text)) ?? 10) : base;
  if (said < 2 || said > 36) return null;
  const digits = text.replace(prefixes[said] ?? /^$/, '');
  if (base === 0 && said === 10 && /^0[_\d]*[1-9]/.test(digits)) return null;
  if (digits.length > 1_000 || !/^[\da-z]+(?:_[\da-z]+)*$/.test(digits)) return null;
  let value = 0n;
  for (const digit of digits.replaceAll('_', '')) {
    const worth = Number.parseInt(digit, 36);
    if (worth >= said) return null;
    value = value * BigInt(said) + BigInt(worth);
  }
  return intOf(sign * value);
}

function parsedFloat(digits: string): number | null {
  if (/^[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?$/i.test(digits)) return Number(digits);
  const word = /^([-+]?)(inf|infinity|nan)$/i.exec(digits);
  if (!word) return null;
  return /nan/i.test(digits) ? Number.NaN : word[1] === '-' ? -Infinity : Infinity;
}

function toFloat(of: Value, use: Use): Value {
  const otherwise = argument(use, 0, 'default') ?? new Float(0);
  present(of);
  if (isNumber(of)) return new Float(numberOf(of));
  const parsed = isText(of) ? parsedFloat(strip(textOf(of), 'strip', null, use.meter)) : null;
  return parsed === null ? otherwise : new Float(parsed);
}

function rounded(of: Value, use: Use): Value {
  const places = numberArgument(use, 0, 'precision', 0);
  const method = textArgument(use, 1, 'method', 'common');
  present(of);
  if (!isNumber(of) || Math.abs(places) > 100)
    throw new Error(`the filter "round" of a value of type ${typeName(of)}.`);
  if (method === 'common') {
    if (isInt(of) && places >= 0) return intOf(BigInt(of));
    const value = numberOf(of);
    const text = Number.isFinite(value) ? fixed(value, places) : String(value);
    return isInt(of) ? Number(text) : new Float(Number(text));
  }
  const scaled = numberOf(of) * 10 ** places;
  return new Float((method === 'ceil' ? Math.ceil(scaled) : Math.floor(scaled)) / 10 ** places);
}

function reversed(of: Value, use: Use): Value {
  if (isText(of)) {
    use.meter.items(sizeOf(of), valueBytes, use.what);
    return [...charactersIn(textOf(of))].reverse().join('');
  }
  const all = items(of, use);
  use.meter.items(all.length, placeBytes, use.what);
  return new List('list_reverseiterator', [...all].reverse());
}

function grouped(of: Value, use: Use): Value {
  const path = argument(use, 0, 'attribute');
  const read = getter(use, path, argument(use, 1, 'default'));
  const isExact = flag(use, 2, 'case_sensitive');
  const keyOf = (item: Value): Value => (isExact ? read(item) : ignoringCase(read(item), use));
  const groups: { readonly key: Value; readonly first: Value; readonly of: Value[] }[] = [];
  for (const item of sorted(items(of, use), use, { keyOf, isReversed: false })) {
    const [key, last] = [keyOf(item), groups.at(-1)];
    if (last && equal(last.key, key, use.meter)) last.of.push(item);
    else groups.push({ key, first: read(item), of: [item] });
  }
  return listOf(groups.map((group) => new List('tuple', [group.first, listOf(group.of)], ['grouper', 'list'])));
}

function unique(of: Value, use: Use): Value {
  const read = getter(use, argument(use, 1, 'attribute'));
  const seen: Value[] = [];
  const texts = new Set<string>();
  const found = items(of, use).filter((item) => {
    const key = flag(use, 0, 'case_sensitive') ? read(item) : ignoringCase(read(item), use);
    use.meter.items(1, valueBytes, use.what);
    if (isText(key)) {
      const isNew = !texts.has(textOf(key));
      texts.add(textOf(key));
      return isNew;
    }
    if (seen.some((each) => equal(each, key, use.meter))) return false;
    seen.push(key);
    return true;
  });
  return once(found);
}

function batched(of: Value, use: Use): Value {
  const size = numberArgument(use, 0, 'linecount', 0);
  const fill = argument(use, 1, 'fill_with') ?? null;
  if (size < 1) throw new Error('the filter "batch" expects a positive number.');
  const all = items(of, use);
  use.meter.items(all.length, placeBytes, use.what);
  const found: Value[][] = [];
  for (let i = 0; i < all.length; i += size) found.push(all.slice(i, i + size));
  const last = found.at(-1);
  if (fill !== null && last) {
    use.meter.items(size - last.length, placeBytes, use.what);
    while (last.length < size) last.push(fill);
  }
  return once(found.map(listOf));
}

/** Cuts a text at a space, unless it exceeds the length only slightly. */
function truncated(of: Value, use: Use): Value {
  const [size, end] = [numberArgument(use, 0, 'length', 255), textArgument(use, 2, 'end', '...')];
  const leeway = numberArgument(use, 3, 'leeway', 5);
  if (of instanceof Undefined) return of;
  if (!isText(of)) throw new Error(`${use.what} expects a text, got ${typeName(of)}.`);
  const endLength = lengthOfText(end);
  if (size < endLength || leeway < 0)
    throw new Error(`${use.what} expects a length of at least ${endLength} and a leeway of at least 0.`);
  use.meter.items(sizeOf(of), valueBytes, use.what);
  const all = charactersIn(textOf(of));
  if (all.length <= size + leeway) return of;
  const kept = all.slice(0, size - endLength).join('');
  const blank = flag(use, 1, 'killwords') ? -1 : kept.lastIndexOf(' ');
  return (blank < 0 ? kept : kept.slice(0, blank)) + end;
}

/** Several lists of about the same length. */
function slicesOf(of: Value, use: Use): Value {
  const count = numberArgument(use, 0, 'slices', 0);
  const fill = argument(use, 1, 'fill_with') ?? null;
  if (count < 1) throw new Error('the filter "slice" expects a positive number.');
  const all = items(of, use);
  use.meter.items(all.length + count, valueBytes, use.what);
  const [each, longer] = [Math.floor(all.length / count), all.length % count];
  const found = Array.from({ length: count }, (_, i) => {
    const start = i * each + Math.min(i, longer);
    const some = all.slice(start, start + each + (i < longer ? 1 : 0));
    return listOf(fill !== null && i >= longer ? [...some, fill] : some);
  });
  return once(found);
}

/** Percent escapes as urllib.parse.quote() writes them. */
function urlQuoted(of: Value, use: Use, inQuery: boolean): string {
  const value = shown(of, use.meter, use.what);
  use.meter.text(value.length * 12, use.what);
  const quoted = Buffer.from(value, 'utf8').reduce((written, byte) => {
    const letter = String.fromCharCode(byte);
    const isPlain = /[\w.~-]/.test(letter) || (letter === '/' && !inQuery);
    return written + (isPlain ? letter : `%${byte.toString(16).toUpperCase().padStart(2, '0')}`);
  }, '');
  return inQuery ? quoted.replaceAll('%20', '+') : quoted;
}

function urlEncoded(of: Value, use: Use): Value {
  if (of instanceof Undefined || of instanceof List || of instanceof Dict) {
    const pairs = of instanceof Dict ? pairsOf(of, use.meter, use.what, 'list').items : items(of, use);
    const written = pairs.map((pair) => {
      const both = items(pair, use);
      if (both.length !== 2) throw new Error(`${use.what} expects pairs.`);
      return both.map((one) => urlQuoted(one, use, true)).join('=');
    });
    return written.join('&');
  }
  return urlQuoted(of, use, false);
}

function fileSize(of: Value, use: Use): Value {
  const size = isText(of)
    ? parsedFloat(strip(textOf(of), 'strip', null, use.meter))
    : isNumber(of)
      ? numberOf(of)
      : null;
  if (size === null || !Number.isFinite(size)) throw new Error(`${use.what} expects a number, got ${typeName(of)}.`);
  const isBinary = flag(use, 0, 'binary');
  const base = isBinary ? 1024 : 1000;
  if (size === 1) return '1 Byte';
  if (size < base) return `${Math.trunc(size)} Bytes`;
  const power = Math.min(8, Array.from('kMGTPEZ').findIndex((_, i) => size < base ** (i + 2)) + 1 || 8);
  const prefix = 'kMGTPEZY'[power - 1]!;
  const name = isBinary ? `${prefix.toUpperCase()}iB` : `${prefix}B`;
  return `${fixed((base * size) / base ** (power + 1), 1)} ${name}`;
}

function dictsorted(of: Value, use: Use): Value {
  const by = textArgument(use, 1, 'by', 'key') === 'value' ? 1 : 0;
  if (!(present(of) instanceof Dict)) throw new Error(`the filter "dictsort" of a value of type ${typeName(of)}.`);
  const keyOf = (pair: Value): Value => {
    const key = (pair as List).items[by]!;
    return flag(use, 0, 'case_sensitive') ? key : ignoringCase(key, use);
  };
  const pairs = pairsOf(of as Dict, use.meter, use.what, 'list');
  return listOf(sorted(pairs.items, use, { keyOf, isReversed: flag(use, 2, 'reverse') }));
}

function lengthOf(of: Value, use: Use): Value {
  if (of instanceof Undefined) return 0;
  if (isText(of)) {
    use.meter.read(sizeOf(of), use.what);
    return lengthOfText(textOf(of));
  }
  if ((of instanceof List && !of.isOnce) || of instanceof Dict) return sizeOf(of);
  throw new Error(`object of type '${typeName(of)}' has no len().`);
}

const orNothing = (value: Value | undefined): Value => (value === undefined ? '' : value);
const firstOf = (all: readonly Value[]): Value =>
  all.length === 0 ? new Undefined('No first item, sequence was empty.') : all[0]!;
const length: Filter = lengthOf;
const orElse: Filter = (of, use) =>
  of instanceof Undefined || (flag(use, 1, 'boolean') && !isTrue(of))
    ? orNothing(argument(use, 0, 'default_value'))
    : of;

const filters: ReadonlyMap<string, Filter> = new Map<string, Filter>([
  [
    'abs',
    (of) => {
      if (of instanceof Float) return new Float(Math.abs(of.value));
      if (!isInt(present(of))) throw new Error(`bad operand type for abs(): '${typeName(of)}'.`);
      return intOf(BigInt(of as number) < 0n ? -BigInt(of as number) : BigInt(of as number));
    },
  ],
  ['attr', (of, use) => attributeOf(of, textArgument(use, 0, 'name'), use.meter)],
  ['batch', batched],
  ['capitalize', text(capitalized)],
  ['count', length],
  ['length', length],
  [
    'center',
    (of, use) => {
      const value = shown(of, use.meter, use.what);
      const width = numberArgument(use, 0, 'width', 80);
      const missing = Math.max(0, width - lengthOfText(value));
      use.meter.text(missing + value.length, use.what);
      const before = Math.floor(missing / 2) + (missing & width & 1);
      return ' '.repeat(before) + value + ' '.repeat(missing - before);
    },
  ],
  ['default', orElse],
  ['d', orElse],
  ['dictsort', dictsorted],
  ['e', (of, { meter, what }) => escaped(of, meter, what)],
  ['escape', (of, { meter, what }) => escaped(of, meter, what)],
  ['filesizeformat', fileSize],
  ['first', (of, use) => firstOf(items(of, use))],
  ['float', toFloat],
  ['forceescape', (of, { meter, what }) => escaped(of instanceof Safe ? of.text : of, meter, what)],
  [
    'format',
    (of, use) => {
      const { positional, named } = use.given;
      const values = named.size > 0 ? new Dict(new Map(named)) : tupleOf(...positional);
      return percentFormat(shown(of, use.meter, use.what), values, use.meter);
    },
  ],
  ['groupby', grouped],
  ['indent', indented],
  ['int', toInt],
  [
    'items',
    (of, use) => {
      if (of instanceof Undefined) return once([]);
      if (of instanceof Dict) return pairsOf(of, use.meter, use.what, 'generator');
      throw new Error('Can only get item pairs from a mapping.');
    },
  ],
  ['join', joined],
  [
    'last',
    (of, use) => {
      if (of instanceof List && of.isOnce) throw new Error(`'${of.kind}' object is not reversible.`);
      const all = items(of, use);
      return all.length === 0 ? new Undefined('No last item, sequence was empty.') : all.at(-1)!;
    },
  ],
  [
    'list',
    (of, use) => {
      const all = items(of, use);
      use.meter.items(all.length, placeBytes, use.what);
      return listOf([...all]);
    },
  ],
  ['lower', text((value) => value.toLowerCase())],
  ['map', mapped],
  ['max', extreme(-1)],
  ['min', extreme(1)],
  ['reject', chosen(false, false)],
  ['rejectattr', chosen(true, false)],
  [
    'replace',
    (of, use) =>
      replaced(
        shown(of, use.meter, use.what),
        textArgument(use, 0, 'old'),
        textArgument(use, 1, 'new'),
        numberArgument(use, 2, 'count', -1),
        use.meter,
        use.what,
      ),
  ],
  ['reverse', reversed],
  ['round', rounded],
  ['safe', (of, { meter, what }) => (of instanceof Safe ? of : new Safe(shown(of, meter, what)))],
  ['select', chosen(false, true)],
  ['selectattr', chosen(true, true)],
  ['slice', slicesOf],
  [
    'sort',
    (of, use) => listOf(sorted(items(of, use), use, { keyOf: sortKey(use), isReversed: flag(use, 0, 'reverse') })),
  ],
  ['string', (of, { meter, what }) => (of instanceof Safe ? of : shown(of, meter, what))],
  [
    'sum',
    (of, use) =>
      items(of, use)
        .map(getter(use, argument(use, 0, 'attribute')))
        .reduce<Value>((sum, item) => binary('+', sum, item, use.meter), argument(use, 1, 'start') ?? 0),
  ],
  [
    'title',
    text((value) =>
      value
        .split(/([-\s({[<]+)/)
        .filter((each) => each !== '')
        .map((each) => {
          const [head = '', ...rest] = charactersIn(each);
          return head.toUpperCase() + rest.join('').toLowerCase();
        })
        .join(''),
    ),
  ],
  ['tojson', tojson],
  [
    'trim',
    (of, use) => {
      const characters = argument(use, 0, 'chars') ?? null;
      const value = shown(of, use.meter, use.what);
      return strip(value, 'strip', characters === null ? null : textArgument(use, 0, 'chars'), use.meter);
    },
  ],
  ['truncate', truncated],
  ['unique', unique],
  ['upper', text((value) => value.toUpperCase())],
  ['urlencode', urlEncoded],
  ['wordcount', (of, use) => shown(of, use.meter, use.what).match(/[\p{L}\p{N}_]+/gu)?.length ?? 0],
]);
