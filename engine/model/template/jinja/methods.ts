import type { TemplateMeter } from '../template-meter.ts';
import { braceFormat } from './format.ts';
import { countSearch } from './operators.ts';
import { isBlankCharacter } from './tokens.ts';
import {
  type Arguments,
  Callable,
  charactersIn,
  compare,
  Dict,
  equal,
  given as present,
  isInt,
  isText,
  isTrue,
  itemsOf,
  keyOf,
  List,
  listOf,
  lengthOfText,
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

/** Names of the methods of Python's values. Unimplemented ones are refused by name; they never mean an item of a map. */
export const namesOfMethods = {
  text: new Set(
    'capitalize casefold center count encode endswith expandtabs find format format_map index isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip maketrans partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title translate upper zfill'.split(
      ' ',
    ),
  ),
  map: new Set('clear copy fromkeys get items keys pop popitem setdefault update values'.split(' ')),
  list: new Set('append clear copy count extend index insert pop remove reverse sort'.split(' ')),
  number: new Set(
    'as_integer_ratio bit_count bit_length conjugate denominator fromhex hex imag is_integer numerator real to_bytes'.split(
      ' ',
    ),
  ),
} as const;

/** Methods that change a value, which transformers' sandbox does not allow. */
const unsafe = new Set('clear pop popitem setdefault update append extend insert remove reverse sort'.split(' '));

type Method<T> = (of: T, given: Arguments, meter: TemplateMeter) => Value;

export function methodOf(of: string | Safe | List | Dict, name: string, meter: TemplateMeter): Value | undefined {
  if (isText(of)) {
    if (!namesOfMethods.text.has(name)) return undefined;
    return callable(name, textMethods[name], textOf(of), meter, of instanceof Safe);
  }
  if (of instanceof Dict) return namesOfMethods.map.has(name) ? callable(name, mapMethods[name], of, meter) : undefined;
  const isKnown = of.kind === 'list' ? namesOfMethods.list.has(name) : name === 'count' || name === 'index';
  return isKnown && !of.isOnce ? callable(name, listMethods[name], of, meter) : undefined;
}

function callable<T>(name: string, method: Method<T> | undefined, of: T, meter: TemplateMeter, isSafe = false): Value {
  if (typeof of !== 'string' && unsafe.has(name)) return new Undefined(`access to attribute '${name}' is unsafe.`);
  return new Callable(name, (given) => {
    if (!method) throw new Error(`${name}() is not supported.`);
    const found = method(of, given, meter);
    return isSafe && typeof found === 'string' ? new Safe(found) : found;
  });
}

function argument({ positional, named }: Arguments, place: number, name = ''): Value | undefined {
  return place < positional.length ? positional[place] : named.get(name);
}

function textArgument(given: Arguments, place: number, method: string, name = ''): string {
  const value = argument(given, place, name);
  if (isText(value)) return textOf(value);
  throw new Error(`${method}() expects a text, got ${value === undefined ? 'nothing' : typeName(value)}.`);
}

function countArgument(given: Arguments, place: number, otherwise: number, name = ''): number {
  const value = argument(given, place, name);
  if (value === undefined || value === null) return otherwise;
  if (isInt(value)) return numberOf(value);
  throw new Error(`expected a whole number as argument, got ${typeName(value)}.`);
}

const mapMethods: Readonly<Record<string, Method<Dict>>> = {
  get: (of, given) => {
    const key = argument(given, 0);
    if (key === undefined) throw new Error('get() expects a key.');
    if (key instanceof Undefined) return argument(given, 1) ?? null;
    const found = of.entries.get(keyOf(key));
    return found === undefined ? (argument(given, 1) ?? null) : found;
  },
  items: (of, _, meter) => pairsOf(of, meter, 'items()', 'dict_items'),
  keys: (of, _, meter) => {
    meter.items(sizeOf(of), placeBytes, 'keys()');
    return new List('dict_keys', [...of.entries.keys()]);
  },
  values: (of, _, meter) => {
    meter.items(sizeOf(of), placeBytes, 'values()');
    return new List('dict_values', [...of.entries.values()]);
  },
  copy: (of, _, meter) => {
    meter.items(sizeOf(of), valueBytes, 'copy()');
    return new Dict(new Map(of.entries));
  },
};

export function pairsOf(of: Dict, meter: TemplateMeter, what: string, kind: 'dict_items' | 'generator' | 'list'): List {
  meter.items(sizeOf(of), 256, what);
  return new List(
    kind,
    Array.from(of.entries, ([key, value]) => tupleOf(key, value)),
  );
}

const listMethods: Readonly<Record<string, Method<List>>> = {
  copy: (of, _, meter) => {
    meter.items(sizeOf(of), placeBytes, 'copy()');
    return listOf([...of.items]);
  },
  count: (of, given, meter) => of.items.filter((item) => equal(item, argument(given, 0)!, meter)).length,
  index: (of, given, meter) => {
    const found = of.items.findIndex((item) => equal(item, argument(given, 0)!, meter));
    if (found < 0) throw new Error('index(): the value is not in the list.');
    return found;
  },
};

const changed =
  (name: string, change: (text: string) => string): Method<string> =>
  (of, _, meter) => {
    meter.text(of.length * 3, `${name}()`);
    return change(of);
  };

const asked =
  (name: string, pattern: RegExp): Method<string> =>
  (of, _, meter) => {
    meter.read(of.length, `${name}()`);
    return pattern.test(of);
  };

const strips =
  (side: 'strip' | 'lstrip' | 'rstrip'): Method<string> =>
  (of, given, meter) => {
    const characters = argument(given, 0) ?? null;
    return strip(of, side, characters === null ? null : textArgument(given, 0, side), meter);
  };

export function strip(
  text: string,
  side: 'strip' | 'lstrip' | 'rstrip',
  characters: string | null,
  meter: TemplateMeter,
): string {
  meter.text(text.length, `${side}()`);
  if (characters !== null) meter.spend((text.length * characters.length) / 64, `${side}()`);
  const taken = characters === null ? null : new Set(charactersIn(characters));
  const all = taken === null ? text.split('') : charactersIn(text);
  const isTaken = (character: string): boolean => (taken === null ? isBlankCharacter(character) : taken.has(character));
  let [from, to] = [0, all.length];
  if (side !== 'rstrip') while (from < to && isTaken(all[from]!)) from++;
  if (side !== 'lstrip') while (to > from && isTaken(all[to - 1]!)) to--;
  return all.slice(from, to).join('');
}

/** The part of a text between two bounds of a search; null if there is none. */
function part(
  of: string,
  given: Arguments,
  meter: TemplateMeter,
  name: string,
): { readonly text: string; readonly from: number } | null {
  if (given.positional.length < 2) return { text: of, from: 0 };
  meter.items(of.length, valueBytes, `${name}()`);
  const all = charactersIn(of);
  const place = (at: number): number => Math.max(0, at < 0 ? at + all.length : at);
  const [from, to] = [
    place(countArgument(given, 1, 0)),
    Math.min(place(countArgument(given, 2, all.length)), all.length),
  ];
  return from > to ? null : { text: all.slice(from, to).join(''), from };
}

const starts =
  (name: 'startswith' | 'endswith'): Method<string> =>
  (of, given, meter) => {
    const wanted = argument(given, 0);
    const within = part(of, given, meter, name)?.text;
    const all = wanted instanceof List && wanted.kind === 'tuple' ? wanted.items : [wanted];
    return all.some((each) => {
      if (!isText(each))
        throw new Error(`${name}() expects a text, got ${each === undefined ? 'nothing' : typeName(each)}.`);
      meter.read(sizeOf(each), `${name}()`);
      if (within === undefined) return false;
      return name === 'startswith' ? within.startsWith(textOf(each)) : within.endsWith(textOf(each));
    });
  };

const finds =
  (name: 'find' | 'rfind' | 'index' | 'rindex'): Method<string> =>
  (of, given, meter) => {
    const wanted = textArgument(given, 0, name);
    const within = part(of, given, meter, name);
    countSearch(meter, of.length, wanted.length, `${name}()`);
    const found =
      within === null ? -1 : name.startsWith('r') ? within.text.lastIndexOf(wanted) : within.text.indexOf(wanted);
    if (found < 0 && name.endsWith('index')) throw new Error('substring not found.');
    return found < 0 ? -1 : within!.from + lengthOfText(within!.text.slice(0, found));
  };

const pads =
  (name: 'ljust' | 'rjust' | 'center' | 'zfill'): Method<string> =>
  (of, given, meter) => {
    const width = countArgument(given, 0, 0);
    const missing = Math.max(0, width - lengthOfText(of));
    meter.text(of.length + missing, `${name}()`);
    const fill = given.positional.length > 1 ? textArgument(given, 1, name) : ' ';
    if (name === 'zfill') {
      const sign = /^[+-]/.exec(of)?.[0] ?? '';
      return sign + '0'.repeat(missing) + of.slice(sign.length);
    }
    const before = name === 'rjust' ? missing : name === 'ljust' ? 0 : Math.floor(missing / 2) + (missing & width & 1);
    return fill.repeat(before) + of + fill.repeat(missing - before);
  };

const splits =
  (name: 'split' | 'rsplit'): Method<string> =>
  (of, given, meter) => {
    const separator = argument(given, 0, 'sep') ?? null;
    const most = countArgument(given, 1, -1, 'maxsplit');
    const wanted = separator === null ? null : textArgument(given, 0, name, 'sep');
    if (wanted === '') throw new Error(`${name}(): empty separator.`);
    countSearch(meter, of.length, wanted?.length ?? 1, `${name}()`);
    meter.items(countOf(of, wanted), valueBytes, `${name}()`);
    meter.text(of.length, `${name}()`);
    return listOf(wanted === null ? words(of, most, name) : parts(of, wanted, most, name));
  };

function countOf(text: string, wanted: string | null): number {
  let count = 1;
  if (wanted !== null) {
    for (let i = text.indexOf(wanted); i >= 0; i = text.indexOf(wanted, i + wanted.length)) count++;
    return count;
  }
  for (let i = 1; i < text.length; i++) if (isBlankCharacter(text[i - 1]!) && !isBlankCharacter(text[i]!)) count++;
  return count;
}

function parts(text: string, separator: string, most: number, name: 'split' | 'rsplit'): string[] {
  const all = text.split(separator);
  if (most < 0 || all.length <= most + 1) return all;
  return name === 'split'
    ? [...all.slice(0, most), all.slice(most).join(separator)]
    : [all.slice(0, all.length - most).join(separator), ...all.slice(all.length - most)];
}

function words(text: string, most: number, name: 'split' | 'rsplit'): string[] {
  const places: [number, number][] = [];
  for (let i = 0; i < text.length; i++) {
    if (isBlankCharacter(text[i]!)) continue;
    const start = i;
    while (i < text.length && !isBlankCharacter(text[i]!)) i++;
    places.push([start, i]);
  }
  if (most >= 0 && places.length > most + 1) {
    if (name === 'split') places.splice(most, places.length, [places[most]![0], places.at(-1)![1]]);
    else places.splice(0, places.length - most, [places[0]![0], places[places.length - most - 1]![1]]);
  }
  return places.map(([from, to]) => text.slice(from, to));
}

const partitions =
  (name: 'partition' | 'rpartition'): Method<string> =>
  (of, given, meter) => {
    const wanted = textArgument(given, 0, name);
    countSearch(meter, of.length, wanted.length, `${name}()`);
    meter.text(of.length, `${name}()`);
    const at = name === 'partition' ? of.indexOf(wanted) : of.lastIndexOf(wanted);
    if (at < 0) return name === 'partition' ? tupleOf(of, '', '') : tupleOf('', '', of);
    return tupleOf(of.slice(0, at), wanted, of.slice(at + wanted.length));
  };

/** Python's replace(); `most` below zero: all. */
export function replaced(
  text: string,
  old: string,
  other: string,
  most: number,
  meter: TemplateMeter,
  what: string,
): string {
  countSearch(meter, text.length, old.length, what);
  const found = old === '' ? lengthOfText(text) + 1 : countOf(text, old) - 1;
  const count = most < 0 ? found : Math.min(most, found);
  meter.spend(count, what);
  meter.text(text.length + count * other.length, what);
  if (count === 0) return text;
  if (old === '') {
    const all = charactersIn(text);
    const head = all.slice(0, count).map((character) => other + character);
    return head.join('') + (count > all.length ? other : all.slice(count).join(''));
  }
  const all = text.split(old);
  return (
    all.slice(0, count + 1).join(other) +
    all
      .slice(count + 1)
      .map((each) => old + each)
      .join('')
  );
}

export function capitalized(text: string): string {
  const [first = '', ...rest] = charactersIn(text);
  return titleCase(first) + rest.join('').toLowerCase();
}

function titleCase(character: string): string {
  const [first = '', ...rest] = character.toUpperCase();
  return first + rest.join('').toLowerCase();
}

export const lineEnd = new RegExp(String.raw`\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]`);

const behindLineEnd = new RegExp(String.raw`(?<=\n|\r(?!\n)|[\v\f\x1c-\x1e\x85\u2028\u2029])`);

const textMethods: Readonly<Record<string, Method<string>>> = {
  upper: changed('upper', (text) => text.toUpperCase()),
  lower: changed('lower', (text) => text.toLowerCase()),
  capitalize: changed('capitalize', capitalized),
  title: changed('title', (text) => text.replaceAll(/\p{L}[\p{L}\p{M}]*/gu, capitalized)),
  swapcase: changed('swapcase', (text) =>
    charactersIn(text)
      .map((each) => (each === each.toUpperCase() ? each.toLowerCase() : each.toUpperCase()))
      .join(''),
  ),
  strip: strips('strip'),
  lstrip: strips('lstrip'),
  rstrip: strips('rstrip'),
  startswith: starts('startswith'),
  endswith: starts('endswith'),
  find: finds('find'),
  rfind: finds('rfind'),
  index: finds('index'),
  rindex: finds('rindex'),
  ljust: pads('ljust'),
  rjust: pads('rjust'),
  center: pads('center'),
  zfill: pads('zfill'),
  split: splits('split'),
  rsplit: splits('rsplit'),
  partition: partitions('partition'),
  rpartition: partitions('rpartition'),
  splitlines: (of, given, meter) => {
    const keepsEnds = isTrue(argument(given, 0, 'keepends') ?? false);
    meter.items(of.length / 8, valueBytes, 'splitlines()');
    const lines = keepsEnds ? of.split(behindLineEnd) : of.split(lineEnd);
    if (lines.at(-1) === '') lines.pop();
    meter.items(lines.length, valueBytes, 'splitlines()');
    return listOf(lines);
  },
  replace: (of, given, meter) =>
    replaced(
      of,
      textArgument(given, 0, 'replace'),
      textArgument(given, 1, 'replace'),
      countArgument(given, 2, -1, 'count'),
      meter,
      'replace()',
    ),
  removeprefix: (of, given) => {
    const wanted = textArgument(given, 0, 'removeprefix');
    return of.startsWith(wanted) ? of.slice(wanted.length) : of;
  },
  removesuffix: (of, given) => {
    const wanted = textArgument(given, 0, 'removesuffix');
    return wanted !== '' && of.endsWith(wanted) ? of.slice(0, -wanted.length) : of;
  },
  count: (of, given, meter) => {
    const wanted = textArgument(given, 0, 'count');
    const within = part(of, given, meter, 'count')?.text;
    countSearch(meter, of.length, wanted.length, 'count()');
    if (within === undefined) return 0;
    return wanted === '' ? lengthOfText(within) + 1 : countOf(within, wanted) - 1;
  },
  join: (of, given, meter) => {
    const texts = itemsOf(present(argument(given, 0)!), meter, 'join()').map((each) => {
      if (!isText(each)) throw new Error(`join(): expected a text, got ${typeName(each)}.`);
      return textOf(each);
    });
    meter.text(
      texts.reduce((sum, { length }) => sum + length + of.length, 0),
      'join()',
    );
    return texts.join(of);
  },
  format: (of, given, meter) => braceFormat(of, given, meter),
  isdigit: asked('isdigit', /^\p{Nd}+$/u),
  isdecimal: asked('isdecimal', /^\p{Nd}+$/u),
  isnumeric: asked('isnumeric', /^\p{N}+$/u),
  isalpha: asked('isalpha', /^\p{L}+$/u),
  isalnum: asked('isalnum', /^[\p{L}\p{N}]+$/u),
  isascii: asked('isascii', /^\p{ASCII}*$/u),
  isspace: (of, _, meter) => {
    meter.read(of.length, 'isspace()');
    return of !== '' && of.split('').every(isBlankCharacter);
  },
  isupper: (of, _, meter) => isCase(of, 'upper', meter),
  islower: (of, _, meter) => isCase(of, 'lower', meter),
};

export function isCase(text: string, which: 'upper' | 'lower', meter: TemplateMeter): boolean {
  meter.text(text.length * 6, `the test "${which}"`);
  const [same, other] = [text.toUpperCase(), text.toLowerCase()];
  return same !== other && text === (which === 'upper' ? same : other);
}

/** Order of sort(), ascending. */
export function orderOf(left: Value, right: Value, meter: TemplateMeter): number {
  return compare(left, right, '<', meter);
}
