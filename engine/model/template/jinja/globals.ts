import { minuteOf } from '../../../../core/minute-of.ts';
import { templateRangeMax } from '../../../limits.ts';
import type { TemplateMeter } from '../template-meter.ts';
import { strftime } from './strftime.ts';
import {
  type Arguments,
  Callable,
  Dict,
  isInt,
  isText,
  itemsOf,
  type Key,
  keyOf,
  List,
  Members,
  numberOf,
  textOf,
  typeName,
  type Value,
  valueBytes,
} from './values.ts';

/** Letters of the template's own text that are repeated. */
const saidMax = 2_000;
/** Steps per format letter: each part of a date is a call to the system. */
const formatSteps = 64;

/** Functions that jinja2 and transformers give a chat template. `time` as {@link minuteOf} writes it; null = the current time. */
export function globalsOf(meter: TemplateMeter, time: string | null): ReadonlyMap<string, Value> {
  const functions: Readonly<Record<string, (given: Arguments) => Value>> = {
    raise_exception({ positional: [message] }) {
      throw new Error(isText(message) ? textOf(message).slice(0, saidMax) : 'it raises an exception without a text.');
    },
    range: (given) => range(given, meter),
    strftime_now({ positional: [format] }) {
      if (!isText(format)) throw new Error('strftime_now() expects a text.');
      meter.spend(textOf(format).length * formatSteps, 'strftime_now()');
      return strftime(time ?? minuteOf(new Date()), textOf(format));
    },
    dict: (given) => new Dict(entriesOf(given, meter)),
    namespace: (given) => namespaceOf(entriesOf(given, meter)),
    cycler: ({ positional }) => cycler(positional),
    joiner: ({ positional: [separator = ', '] }) => {
      let isUsed = false;
      const call = (): Value => {
        const text = isUsed ? separator : '';
        isUsed = true;
        return text;
      };
      return new Members('Joiner', { member: () => undefined, call });
    },
  };
  return new Map(Object.entries(functions).map(([name, call]) => [name, new Callable(name, call)]));
}

function range({ positional }: Arguments, meter: TemplateMeter): Value {
  const numbers = positional.map((each) => (isInt(each) ? numberOf(each) : Number.NaN));
  const [start, stop] = numbers.length === 1 ? [0, numbers[0]!] : [numbers[0] ?? Number.NaN, numbers[1] ?? Number.NaN];
  const step = numbers[2] ?? 1;
  const count = Math.max(0, Math.ceil((stop - start) / step));
  if (!(count <= templateRangeMax))
    throw new Error(`range() of ${count} numbers; expected at most ${templateRangeMax} and a step other than zero.`);
  meter.items(count, valueBytes, 'range()');
  return new List(
    'range',
    Array.from({ length: count }, (_, i) => start + i * step),
  );
}

/** Python's dict(). */
function entriesOf({ positional: [from], named }: Arguments, meter: TemplateMeter): Map<Key, Value> {
  const what = 'a function';
  const entries = new Map<Key, Value>();
  if (from instanceof Dict) {
    meter.items(from.entries.size, valueBytes, what);
    for (const [key, value] of from.entries) entries.set(key, value);
  } else if (from !== undefined) {
    const pairs = itemsOf(from, meter, what);
    meter.items(pairs.length, valueBytes, what);
    for (const pair of pairs) {
      const both = itemsOf(pair, meter, what);
      if (both.length !== 2) throw new Error('a map is made of pairs.');
      entries.set(keyOf(both[0]!), both[1]!);
    }
  }
  meter.items(named.size, valueBytes, what);
  for (const [key, value] of named) entries.set(key, value);
  return entries;
}

function namespaceOf(entries: Map<Key, Value>): Members {
  const fields = new Map<string, Value>();
  for (const [key, value] of entries) {
    if (typeof key !== 'string') throw new Error(`a namespace has texts as names, not ${typeName(key)}.`);
    fields.set(key, value);
  }
  return new Members('Namespace', { member: (name) => fields.get(name), fields });
}

function cycler(items: readonly Value[]): Members {
  if (items.length === 0) throw new Error('at least one item has to be provided.');
  let at = 0;
  const next = new Callable('next', () => items[at++ % items.length]!);
  const reset = new Callable('reset', () => {
    at = 0;
    return null;
  });
  const members: ReadonlyMap<string, () => Value> = new Map([
    ['next', () => next],
    ['reset', () => reset],
    ['current', () => items[at % items.length]!],
  ]);
  return new Members('Cycler', { member: (name) => members.get(name)?.() });
}
