/**
 * Finds known secrets in untrusted texts, also in the spellings that encoders give them: with the escapes of JSON, at any
 * depth of JSON in JSON; percent-encoded, as in URLs; in base64, alone or as a part of more (`user:password`).
 * A secret that is cut up, reversed, hashed or in hex is not found: no list of spellings ends.
 */
export class SecretSpellings {
  readonly #patterns: readonly RegExp[];

  constructor(values: readonly string[]) {
    const longestFirst = [...new Set(values)].toSorted((a, b) => b.length - a.length);
    this.#patterns = longestFirst.flatMap((value) => {
      // Backslashes at an end are left: in JSON they may belong to the character beside the secret.
      const inner = value.replaceAll(/^\\+|\\+$/g, '');
      return inner === '' ? [] : [patternOf(charactersOf(inner)), ...inBase64(value).map(patternOf)];
    });
  }

  /** The text with `name` in place of each secret. A text of JSON stays one. */
  replacedBy(name: string, text: string): string {
    let clean = text;
    for (const pattern of this.#patterns) clean = replaceAround(clean, pattern, name);
    return clean;
  }
}

/** A character of a secret, with others that count as the same one. */
interface Spelled {
  readonly any: readonly string[];
  /** Backslashes of the secret itself are before it. */
  readonly isAfterBackslash: boolean;
}

function charactersOf(text: string): Spelled[] {
  const all: Spelled[] = [];
  let isAfterBackslash = false;
  for (const character of text) {
    if (character !== '\\') all.push({ any: [character], isAfterBackslash });
    isAfterBackslash = character === '\\';
  }
  return all;
}

/**
 * Begins with the longest run of letters and digits, which no encoder changes: engines find a fixed text fast. What is
 * before it is matched backwards, in group 1.
 */
function patternOf(characters: readonly Spelled[]): RegExp {
  const { from, to } = longestPlainRun(characters);
  const core = characters.slice(from, to).map(({ any }) => any[0]!);
  const before = characters.slice(0, from).map((one, i) => characterPattern(one, i === 0));
  const after = characters.slice(to).map((one, i) => characterPattern(one, from === to && i === 0));
  const begins = from === 0 && to > from ? String.raw`(?<!\\)\\*` : before.join('');
  const backslashes = characters[from]?.isAfterBackslash === true ? backslashOfSecret : '';
  return new RegExp(`${core.join('')}(?<=(${begins}${backslashes})${core.join('')})${after.join('')}`, 'g');
}

const backslashOfSecret = String.raw`(?:\\|%5[cC])+`;

function longestPlainRun(characters: readonly Spelled[]): { readonly from: number; readonly to: number } {
  let longest = { from: 0, to: 0 };
  let from = 0;
  for (const [i, { any, isAfterBackslash }] of characters.entries()) {
    const isPlain = any.length === 1 && /^[A-Za-z0-9]$/.test(any[0]!);
    if (!isPlain) from = i + 1;
    else if (isAfterBackslash) from = i;
    if (i + 1 - from > longest.to - longest.from) longest = { from, to: i + 1 };
  }
  return longest;
}

/** Escapes come first: a backslash that was left before the name would be one of the name's. */
function characterPattern({ any, isAfterBackslash }: Spelled, isFirst: boolean): string {
  const raw = any.map(literal).join('|');
  const escaped = any.flatMap((one) => [literal(one), ...jsonEscapes(one)]).join('|');
  const percent = any.map(percentEncoded).join('|');
  if (isAfterBackslash) return `${backslashOfSecret}(?:${escaped}|${percent})`;
  return `(?:${isFirst ? String.raw`(?<!\\)` : ''}\\\\+(?:${escaped})|${raw}|${percent})`;
}

function literal(character: string): string {
  return unitsOf(character)
    .map((unit) => `\\u${unit}`)
    .join('');
}

/** UTF-16 units, four hex digits each. */
function unitsOf(character: string): string[] {
  return Array.from({ length: character.length }, (_, i) => character.charCodeAt(i).toString(16).padStart(4, '0'));
}

const shortEscapes: Readonly<Record<string, string>> = { '\n': 'n', '\r': 'r', '\t': 't', '\b': 'b', '\f': 'f' };

/** What follows the backslash of an escape, without the character itself. */
function jsonEscapes(character: string): string[] {
  const written = unitsOf(character)
    .map((unit) => `u${anyCase(unit)}`)
    .join(String.raw`\\+`);
  const short = shortEscapes[character];
  return short === undefined ? [written] : [written, short];
}

function percentEncoded(character: string): string {
  const bytes = [...Buffer.from(character, 'utf8')];
  const written = bytes.map((byte) => `%${anyCase(byte.toString(16).padStart(2, '0'))}`).join('');
  return character === ' ' ? String.raw`${written}|\+` : written;
}

function anyCase(hex: string): string {
  return hex.replaceAll(/[a-f]/g, (letter) => `[${letter}${letter.toUpperCase()}]`);
}

/** Digits that the secret decides alone, after a text of any length before it; as the standard and URLs have them. */
function inBase64(value: string): Spelled[][] {
  const bytes = Buffer.from(value, 'utf8');
  return [0, 1, 2].flatMap((before) => {
    const digits = Buffer.concat([Buffer.alloc(before), bytes]).toString('base64');
    const [from, to] = [Math.ceil((8 * before) / 6), Math.floor((8 * (before + bytes.length)) / 6)];
    if (to - from < base64DigitsMin) return [];
    const decided = digits.slice(from, to);
    return [Array.from(decided, (digit) => ({ any: alsoInUrls[digit] ?? [digit], isAfterBackslash: false }))];
  });
}

const alsoInUrls: Readonly<Record<string, readonly string[]>> = { '+': ['+', '-'], '/': ['/', '_'] };
/** Fewer would occur in texts by chance. */
const base64DigitsMin = 7;

function replaceAround(text: string, pattern: RegExp, name: string): string {
  let clean = '';
  let end = 0;
  for (const found of text.matchAll(pattern)) {
    const start = Math.max(end, found.index - found[1]!.length);
    clean += text.slice(end, start) + name;
    end = found.index + found[0].length;
  }
  return end === 0 ? text : clean + text.slice(end);
}
