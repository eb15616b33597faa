import type { TemplateMeter } from './template-meter.ts';

/** A value in the template language: a text, a number, a list, or a map by key. */
export interface TemplateValue {
  readonly type: string;
  readonly value: unknown;
}

/** Arguments of a filter, a method or a function. */
export interface TemplateArguments {
  readonly positional: readonly TemplateValue[];
  readonly named: ReadonlyMap<string, TemplateValue>;
}

/** Bytes per value, per key-value pair as a list, and per list entry. */
const [valueBytes, pairBytes, placeBytes] = [96, 256, 8];
/** Deeper than any schema of tools, and shallow enough that the package's recursion does not overflow the stack. */
const nestingMax = 200;
/** Most characters that one can become: `"` in JSON is \u0022, and in addresses %22. */
const growthMax = 6;
/** Most letters that one can become in another case, such as ΐ. */
const caseGrowthMax = 3;
const numberCharacters = 24;
const functionCharacters = 1_000;

/** Counts the cost of an operator. */
export function countOperator(meter: TemplateMeter, operator: string, left: TemplateValue, right: TemplateValue): void {
  const what = `the operator "${operator}"`;
  const [a, b] = [sizeOf(left), sizeOf(right)];
  switch (operator) {
    case 'in':
    case 'not in':
      if (isText(left) && isText(right)) return countSearch(meter, b, a, what);
      meter.read(a, what);
      return meter.spend(isList(right) ? b * (1 + (isText(left) ? a / 64 : 0)) : 1, what);
    case '+':
      if (isList(left) && isList(right)) return meter.items(a + b, placeBytes, what);
      return isText(left) || isText(right) ? countJoined(meter, [left, right], what) : undefined;
    case '~':
      return countJoined(meter, [left, right], what);
    case '*':
      return countRepeated(meter, left, right, what);
    case '%':
      if (isText(left)) meter.text(growthMax * a + widthsIn(String(left.value)) + b, what);
      return undefined;
    default:
      meter.read(Math.min(a, b), what);
      // Comparing a list with a text writes the list out first.
      if (isList(left) !== isList(right)) countJoined(meter, [left, right].filter(isList), what);
  }
}

/** Counts the cost of a filter. */
export function countFilter(
  meter: TemplateMeter,
  name: string,
  operand: TemplateValue,
  given: TemplateArguments,
): void {
  const what = `the filter "${name}"`;
  const size = sizeOf(operand);
  switch (name) {
    case 'safe':
    case 'default':
    case 'd':
      return undefined;
    case 'first':
    case 'last':
    case 'length':
    case 'count':
    case 'abs':
    case 'int':
    case 'float':
    case 'bool':
    case 'round':
      return meter.read(isText(operand) ? size : 1, what);
    case 'tojson':
      return countJson(meter, operand, given, what);
    case 'join':
      if (isText(operand)) meter.items(size, valueBytes, what);
      countJoined(meter, [operand], what, sizeOf(argument(given, 0, 'separator', 'd')));
      return undefined;
    case 'replace':
      return countReplace(meter, operand, given, what);
    case 'indent':
      return countIndent(meter, operand, given, what);
    case 'items':
      return meter.items(size, pairBytes, what);
    case 'sort':
    case 'unique':
    case 'dictsort':
    case 'groupby':
    case 'min':
    case 'max':
      return countSorted(meter, operand, given, what);
    case 'map':
    case 'select':
    case 'reject':
    case 'selectattr':
    case 'rejectattr':
      return countEach(meter, name, operand, given);
    case 'list':
    case 'reverse':
      return isText(operand) ? meter.items(size, valueBytes, what) : meter.items(size, placeBytes, what);
    case 'upper':
    case 'lower':
    case 'title':
    case 'capitalize':
    case 'trim':
      return isText(operand) ? meter.text(caseGrowthMax * size, what) : countJoined(meter, [operand], what);
    case 'string':
      return countJoined(meter, [operand], what);
    default:
      return countUnknown(meter, [operand], given, what);
  }
}

/** Counts the cost of a method on a text, a list or a map. */
export function countMethod(meter: TemplateMeter, name: string, of: TemplateValue, given: TemplateArguments): void {
  const what = `${name}()`;
  const size = sizeOf(of);
  if (isList(of)) return meter.spend(1 + sizesOf(given), what);
  if (!isText(of)) {
    if (name === 'get') return undefined;
    return name === 'dictsort' ? countSorted(meter, of, given, what) : meter.items(size, pairBytes, what);
  }
  switch (name) {
    case 'split':
    case 'rsplit':
    case 'splitlines':
      return countSplit(meter, String(of.value), given, what);
    case 'replace':
      return countReplace(meter, of, given, what);
    case 'startswith':
    case 'endswith':
      meter.read(size, what);
      return meter.spend(sizesOf(given), what);
    case 'upper':
    case 'lower':
    case 'title':
    case 'capitalize':
    case 'strip':
    case 'lstrip':
    case 'rstrip':
      return meter.text(caseGrowthMax * size, what);
    default:
      return countUnknown(meter, [of], given, what);
  }
}

/** Counts the cost of a function that copies its arguments. */
export function countCall(meter: TemplateMeter, given: TemplateArguments): void {
  meter.items(1 + sizesOf(given), valueBytes, 'a function');
}

/** Counts the cost of a test. */
export function countTest(meter: TemplateMeter, operand: TemplateValue, name: string): void {
  if (isText(operand) && (name === 'lower' || name === 'upper'))
    meter.text(sizeOf(operand) * growthMax, `the test "${name}"`);
}

/** Counts the cost of a slice of a text or a list. */
export function countSlice(meter: TemplateMeter, of: TemplateValue): void {
  meter.hold(sizeOf(of) * (isText(of) ? valueBytes : placeBytes), 'a slice');
  meter.spend(Math.ceil(sizeOf(of) / 16), 'a slice');
}

/** Counts the cost of a value that is written into the result. */
export function countShown(meter: TemplateMeter, value: TemplateValue): void {
  if (isText(value)) return meter.text(sizeOf(value), 'writing it');
  countJoined(meter, [value], 'writing it');
}

/** Number of characters, items or entries. */
export function sizeOf({ value }: TemplateValue): number {
  if (typeof value === 'string' || Array.isArray(value)) return value.length;
  return value instanceof Map ? value.size : 0;
}

/** Counts a join: all values as one text, with a separator between the items of a list. */
function countJoined(meter: TemplateMeter, values: readonly TemplateValue[], what: string, separator = 0): void {
  for (const value of values) {
    if (isText(value)) meter.text((1 + separator) * sizeOf(value), what);
    else meter.text(charactersOf(meter, value, { what, separator: 4 + separator, indent: 0, depth: 0 }), what);
  }
}

function countJson(meter: TemplateMeter, operand: TemplateValue, given: TemplateArguments, what: string): void {
  const indent = numberOf(argument(given, 0, 'indent'));
  const separators = given.named.get('separators');
  const separator = 4 + (separators ? charactersOf(meter, separators, { ...flat, what }) : 0);
  meter.text(charactersOf(meter, operand, { what, separator, indent, depth: 0 }), what);
}

const flat = { separator: 4, indent: 0, depth: 0 } as const;

/**
 * Returns the most characters a value can take when written out. The walk mirrors the writer, so a value used in several places counts each
 * time.
 */
function charactersOf(
  meter: TemplateMeter,
  { type, value }: TemplateValue,
  how: { readonly what: string; readonly separator: number; readonly indent: number; readonly depth: number },
): number {
  const { what, separator, indent, depth } = how;
  meter.spend(1, what);
  if (typeof value === 'string') return value.length * growthMax + 2;
  if (type === 'FunctionValue') return functionCharacters;
  if (!(Array.isArray(value) || value instanceof Map)) return numberCharacters;
  if (depth > nestingMax) throw new Error(`${what} of lists and maps more than ${nestingMax} deep in one another.`);
  const size = Array.isArray(value) ? value.length : value.size;
  const around = separator + indent * (depth + 1) + 1;
  let characters = around * (size + 2);
  if (value instanceof Map) meter.spend(size * Math.ceil(Math.log2(size + 1)), what); // may be sorted
  const inside = { ...how, depth: depth + 1 };
  for (const [key, item] of (value as Map<unknown, TemplateValue>).entries()) {
    if (typeof key === 'string') characters += key.length * growthMax + 4;
    characters += charactersOf(meter, item, inside);
  }
  return characters;
}

function countRepeated(meter: TemplateMeter, left: TemplateValue, right: TemplateValue, what: string): void {
  for (const [one, times] of [
    [left, right],
    [right, left],
  ] as const) {
    if (isText(one)) meter.text(sizeOf(one) * Math.max(0, numberOf(times)), what);
    if (isList(one)) meter.items(sizeOf(one) * Math.max(0, numberOf(times)), placeBytes, what);
  }
}

/** Counts the search for one text in another: in the worst case, letter by letter at every position. */
function countSearch(meter: TemplateMeter, within: number, wanted: number, what: string): void {
  meter.spend(Math.ceil(within / 64 + (within * wanted) / 1024), what);
}

function countReplace(meter: TemplateMeter, { value }: TemplateValue, given: TemplateArguments, what: string): void {
  const [text, old, other] = [String(value), argument(given, 0, 'old').value, argument(given, 1, 'new')];
  const wanted = typeof old === 'string' ? old : '';
  countSearch(meter, text.length, wanted.length, what);
  const count = wanted === '' ? text.length + 1 : occurrences(text, wanted);
  meter.spend(count, what);
  meter.text(text.length + count * sizeOf(other), what);
}

function countSplit(meter: TemplateMeter, text: string, given: TemplateArguments, what: string): void {
  const separator = argument(given, 0, 'sep').value;
  const wanted = typeof separator === 'string' ? separator : '';
  countSearch(meter, text.length, wanted.length, what);
  const count = wanted === '' ? words(text) : occurrences(text, wanted);
  meter.items(count + 1, valueBytes, what);
  meter.text(text.length, what);
}

function countIndent(meter: TemplateMeter, operand: TemplateValue, given: TemplateArguments, what: string): void {
  const text = String(operand.value);
  meter.read(text.length, what);
  const by = argument(given, 0, 'width');
  const width = by === none ? 4 : isText(by) ? sizeOf(by) : numberOf(by);
  const lines = occurrences(text, '\n') + 1;
  meter.items(lines, valueBytes, what);
  meter.text(text.length + (lines + 1) * width, what);
}

/** Counts a sort: each item is compared with several others, letter by letter. */
function countSorted(meter: TemplateMeter, operand: TemplateValue, given: TemplateArguments, what: string): void {
  const size = sizeOf(operand);
  const path = given.positional[2] ?? argument(given, 0, 'attribute');
  meter.items(size, pairBytes, what);
  let characters = 0;
  for (const item of valuesOf(operand)) characters += sizeOf(isText(path) ? at(item, String(path.value)) : item);
  const rounds = Math.ceil(Math.log2(size + 2));
  const looks = 1 + (isText(path) ? sizeOf(path) / 8 : 0);
  meter.spend(rounds * Math.ceil(size * looks + characters / 16), what);
}

function countEach(meter: TemplateMeter, name: string, operand: TemplateValue, given: TemplateArguments): void {
  const what = `the filter "${name}"`;
  const [first, ...rest] = given.positional;
  const path = given.named.get('attribute') ?? first;
  const looks = 1 + (isText(path) ? Math.ceil(sizeOf(path!) / 8) : 0);
  meter.items(sizeOf(operand) * looks, placeBytes, what);
  const isFilter = name === 'map' && isText(first);
  const test = name.endsWith('attr') ? rest[0] : first;
  if (!isFilter && !isText(test)) return;
  for (const item of valuesOf(operand)) {
    if (isFilter) countFilter(meter, String(first!.value), item, { positional: rest, named: given.named });
    else countTest(meter, name.endsWith('attr') ? at(item, String(first!.value)) : item, String(test!.value));
  }
}

/** Counts an unknown operation: it may write out everything it is given, plus as many characters as any number says. */
function countUnknown(
  meter: TemplateMeter,
  of: readonly TemplateValue[],
  given: TemplateArguments,
  what: string,
): void {
  const others = [...given.positional, ...given.named.values()];
  countJoined(meter, [...of, ...others.filter((value) => typeof value.value !== 'number')], what);
  for (const value of of) meter.items(sizeOf(value), placeBytes, what);
  for (const value of others) meter.text(numberOf(value), what);
}

const none: TemplateValue = { type: 'UndefinedValue', value: undefined };

function isText(value: TemplateValue | undefined): boolean {
  return typeof value?.value === 'string';
}

function isList(value: TemplateValue): boolean {
  return Array.isArray(value.value);
}

/** Magnitude of a number; 0 for other values. */
function numberOf(value: TemplateValue | undefined): number {
  return typeof value?.value === 'number' ? Math.abs(value.value) : 0;
}

function argument({ positional, named }: TemplateArguments, place: number, ...names: readonly string[]): TemplateValue {
  return positional[place] ?? names.map((name) => named.get(name)).find((value) => value !== undefined) ?? none;
}

function sizesOf({ positional, named }: TemplateArguments): number {
  return [...positional, ...named.values()].reduce((sum, value) => sum + sizeOf(value), 0);
}

function* valuesOf({ value }: TemplateValue): Iterable<TemplateValue> {
  if (Array.isArray(value)) yield* value;
  else if (value instanceof Map) yield* (value as Map<string, TemplateValue>).values();
}

function at(item: TemplateValue, path: string): TemplateValue {
  let found: TemplateValue = item;
  for (const part of path.split('.', nestingMax)) {
    const { value } = found;
    const next =
      value instanceof Map ? value.get(part) : Array.isArray(value) ? value[Number.parseInt(part, 10)] : none;
    found = (next as TemplateValue | undefined) ?? none;
  }
  return found;
}

function occurrences(text: string, wanted: string): number {
  let count = 0;
  for (let i = text.indexOf(wanted); i >= 0; i = text.indexOf(wanted, i + wanted.length)) count++;
  return count;
}

/** Upper bound on the runs of non-blank characters. */
function words(text: string): number {
  let count = 0;
  let wasBlank = true;
  for (let i = 0; i < text.length; i++) {
    const isBlank = /\s/.test(text[i]!);
    if (wasBlank && !isBlank) count++;
    wasBlank = isBlank;
  }
  return count;
}

/** Sum of all widths in a `%` format, as in `%5d`. */
function widthsIn(format: string): number {
  return [...format.matchAll(/\d+/g)].reduce((sum, [digits]) => sum + Number(digits), 0);
}
