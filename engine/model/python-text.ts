import type { TemplateValue } from './template-costs.ts';

const blank = String.raw`[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]`;
const atStart = new RegExp(`^${blank}+`);
const isBlank = new RegExp(`^${blank}$`);

/** Python's str.strip(); its blanks are not those of JavaScript's trim(). `characters`: what is taken off instead. */
export function stripped(text: string, side: 'strip' | 'lstrip' | 'rstrip', characters: string | null): string {
  const isTaken = (character: string): boolean =>
    characters === null ? isBlank.test(character) : characters.includes(character);
  let [from, to] = [0, text.length];
  if (side !== 'rstrip') {
    if (characters === null) from = atStart.exec(text)?.[0].length ?? 0;
    else while (from < to && isTaken(text[from]!)) from++;
  }
  if (side !== 'lstrip') while (to > from && isTaken(text[to - 1]!)) to--;
  return text.slice(from, to);
}

/** A value as Python's str() writes it; null for a type whose form in Python is not known here. */
export function pythonText(value: TemplateValue): string | null {
  if (value.type === 'UndefinedValue') return '';
  return typeof value.value === 'string' ? value.value : pythonRepr(value);
}

function pythonRepr({ type, value }: TemplateValue): string | null {
  if (type === 'UndefinedValue') return 'Undefined';
  if (type === 'NullValue') return 'None';
  if (type === 'BooleanValue') return value === true ? 'True' : 'False';
  if (type === 'IntegerValue') return String(value);
  if (type === 'FloatValue') return floatText(value as number);
  if (type === 'StringValue') return quoted(value as string);
  if (type === 'ArrayValue' || type === 'TupleValue') return listText(value as readonly TemplateValue[], type);
  if (type !== 'ObjectValue') return null;
  const entries = [...(value as ReadonlyMap<string, TemplateValue>)].map(
    ([key, item]) => `${quoted(key)}: ${pythonRepr(item)}`,
  );
  return `{${entries.join(', ')}}`;
}

function listText(items: readonly TemplateValue[], type: string): string {
  const inside = items.map(pythonRepr).join(', ');
  if (type === 'ArrayValue') return `[${inside}]`;
  return items.length === 1 ? `(${inside},)` : `(${inside})`;
}

/** A float as Python's repr() writes it. */
function floatText(value: number): string {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? 'nan' : value > 0 ? 'inf' : '-inf';
  if (Object.is(value, -0)) return '-0.0';
  const [digits, exponentText] = value.toExponential().split('e') as [string, string];
  const exponent = Number(exponentText);
  if (exponent < -4 || exponent >= 16)
    return `${digits}e${exponent < 0 ? '-' : '+'}${String(Math.abs(exponent)).padStart(2, '0')}`;
  const text =
    exponent < 0 ? value.toFixed(Math.max(0, digits.replace(/\D/g, '').length - 1 - exponent)) : String(value);
  return text.includes('.') ? text : `${text}.0`;
}

const named: Readonly<Record<string, string>> = { '\n': String.raw`\n`, '\r': String.raw`\r`, '\t': String.raw`\t` };

function quoted(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const inside = text.replaceAll(/['"\\]|[\p{C}\p{Z}]/gu, (character) => {
    if (character === quote || character === '\\') return `\\${character}`;
    if (character === ' ' || character === "'" || character === '"') return character;
    if (named[character] !== undefined) return named[character];
    const point = character.codePointAt(0)!;
    const hex = point.toString(16);
    if (point < 0x1_00) return `\\x${hex.padStart(2, '0')}`;
    return point < 0x1_00_00 ? `\\u${hex.padStart(4, '0')}` : `\\U${hex.padStart(8, '0')}`;
  });
  return `${quote}${inside}${quote}`;
}
