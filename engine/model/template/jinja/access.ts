import type { TemplateMeter } from '../template-meter.ts';
import { methodOf, namesOfMethods } from './methods.ts';
import {
  Callable,
  charactersIn,
  Dict,
  given,
  isInt,
  isText,
  keyOf,
  List,
  Members,
  numberOf,
  textOf,
  typeName,
  Undefined,
  type Value,
  valueBytes,
} from './values.ts';

/** `of.name`: a method or an attribute, else the item of that name. */
export function attributeOf(of: Value, name: string, meter: TemplateMeter): Value {
  given(of);
  const own = ownAttribute(of, name, meter);
  if (own !== undefined) return own;
  if (of instanceof Dict) {
    const found = of.entries.get(name);
    if (found !== undefined) return found;
  }
  const object = of === null ? 'None' : `'${typeName(of)} object'`;
  return new Undefined(`${object} has no attribute '${name}'.`);
}

/** `of[key]`: an item, else the attribute if the key is a text. */
export function itemOf(of: Value, key: Value, meter: TemplateMeter): Value {
  given(of);
  if (of instanceof Dict && !(key instanceof Undefined || key instanceof List || key instanceof Dict)) {
    meter.read(isText(key) ? textOf(key).length : 1, 'an item');
    const found = of.entries.get(keyOf(key));
    if (found !== undefined) return found;
  }
  if (isInt(key)) {
    const found = placeIn(of, numberOf(key), meter);
    if (found !== undefined) return found;
  }
  if (isText(key)) {
    const own = ownAttribute(of, textOf(key), meter);
    if (own !== undefined) return own;
  }
  const name = isText(key) ? `'${textOf(key).slice(0, 100)}'` : isInt(key) ? String(key) : typeName(key);
  return new Undefined(`'${typeName(of)} object' has no element ${name}.`);
}

function placeIn(of: Value, index: number, meter: TemplateMeter): Value | undefined {
  if (of instanceof List && (of.kind === 'list' || of.kind === 'tuple' || of.kind === 'range'))
    return of.items.at(index);
  if (!isText(of)) return undefined;
  const text = textOf(of);
  if (!/[\ud800-\udfff]/.test(text.slice(0, 1_000_000))) {
    meter.read(text.length, 'an item');
    return text.at(index);
  }
  meter.items(text.length, valueBytes, 'an item');
  return charactersIn(text).at(index);
}

function ownAttribute(of: Value, name: string, meter: TemplateMeter): Value | undefined {
  if (of instanceof Members) return of.member(name);
  if (of instanceof List && of.names.includes(name)) return of.items[of.names.indexOf(name)];
  if (isText(of) || of instanceof List || of instanceof Dict) return methodOf(of, name, meter);
  if (!(of instanceof Callable) && namesOfMethods.number.has(name) && of !== null)
    throw new Error(`.${name} of a number is not supported.`);
  return undefined;
}
