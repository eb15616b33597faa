import type { ToolCall } from '../../core/rl/rollout/rollout.ts';
import { objectOf, textOf, type WrittenJson, writeWritten } from '../../core/written-json.ts';

/**
 * Reads `[look(key=1, note='a'), stop()]`: a Python list of calls with literal arguments. Null for any other text.
 * Unless strict, lines may end inside texts, numbers may begin with zeros, and arguments without a name are dropped. A
 * text may also contain its own quotes (`'sed -n '1,9p' f.py'`) if only one of them can end it.
 */
export function readPythonCalls(text: string, { isStrict = false } = {}): ToolCall[] | null {
  const calls = callsIn(text.trimEnd(), isStrict);
  return calls ?? (isStrict ? null : readRequoted(text.trimEnd()));
}

function callsIn(text: string, isStrict: boolean): ToolCall[] | null {
  try {
    return new Reader(text, isStrict).calls();
  } catch (error) {
    if (error instanceof NoCalls) return null;
    throw error;
  }
}

/** Bounds the places where a text might end; each costs a reading of the whole. */
const endingsMax = 256;

/** Reads calls with quotes inside their first broken text, if there is only one way to do so, as vLLM does for LFM2. */
function readRequoted(text: string): ToolCall[] | null {
  const broken = firstBrokenText(text);
  if (broken === null || broken.endings.length > endingsMax) return null;
  const read = broken.endings.flatMap((end) => {
    const inside = text
      .slice(broken.start + 1, end)
      .replaceAll(/\\[^]|['"]/g, (found) => (found === broken.quote ? `\\${found}` : found));
    const calls = callsIn(text.slice(0, broken.start + 1) + inside + text.slice(end), false);
    return calls === null ? [] : [calls];
  });
  return read.length === 1 ? read[0]! : null;
}

/** The first text that its first quote cannot end, and the quotes that might. */
function firstBrokenText(
  text: string,
): { readonly start: number; readonly quote: string; readonly endings: readonly number[] } | null {
  for (let start = 0; start < text.length; start++) {
    const quote = text[start]!;
    if (quote !== "'" && quote !== '"') continue;
    const quotes = quotesAfter(text, start + 1, quote);
    const first = quotes[0];
    if (first === undefined) return null;
    if (!mayEndAt(text, first)) return { start, quote, endings: quotes.filter((at) => mayEndAt(text, at)) };
    start = first;
  }
  return null;
}

function quotesAfter(text: string, from: number, quote: string): number[] {
  const found: number[] = [];
  for (let at = from; at < text.length; at++) {
    if (text[at] === '\\') at++;
    else if (text[at] === quote) found.push(at);
  }
  return found;
}

const endPattern = /\s*[,)\]}:]/y;

function mayEndAt(text: string, quoteAt: number): boolean {
  endPattern.lastIndex = quoteAt + 1;
  return endPattern.test(text);
}

class NoCalls extends Error {}

const depthMax = 100;
const blankPattern = /[ \t\r\n\f]*/y;
const namePattern = /[A-Za-z_]\w*/y;
const numberPattern = /0[xX][\da-fA-F]+|0[oO][0-7]+|0[bB][01]+|(?:\d[\d_]*)?\.?\d[\d_]*\.?(?:[eE][+-]?\d+)?/y;
const words: Readonly<Record<string, string>> = {
  True: 'true',
  False: 'false',
  None: 'null',
  true: 'true',
  false: 'false',
  null: 'null',
};
const escapes: Readonly<Record<string, string>> = {
  n: '\n',
  t: '\t',
  r: '\r',
  b: '\b',
  f: '\f',
  v: '\v',
  a: '\x07',
  '\\': '\\',
  "'": "'",
  '"': '"',
  '\n': '',
};

class Reader {
  readonly #text: string;
  readonly #isStrict: boolean;
  #at = 0;

  constructor(text: string, isStrict: boolean) {
    this.#text = text;
    this.#isStrict = isStrict;
  }

  calls(): ToolCall[] {
    this.#expect('[');
    const calls = this.#several(']', () => this.#call());
    // Python accepts further lists on lines of their own; vLLM drops them.
    const rest = this.#text.slice(this.#at);
    if (rest !== '' && !(this.#isStrict && /^\s*\n\s*\[.*\]$/s.test(rest))) throw new NoCalls();
    return calls;
  }

  #call(): ToolCall {
    let name = this.#word(namePattern);
    while (this.#takes('.')) name += `.${this.#word(namePattern)}`;
    this.#expect('(');
    let isNamed = false;
    const given = this.#several(')', (): [string, WrittenJson] | null => {
      const start = this.#at;
      const key = this.#match(namePattern);
      if (key !== '' && this.#takes('=')) {
        isNamed = true;
        return [key, this.#value(0)];
      }
      // Python has none behind one with a name.
      if (this.#isStrict || isNamed) throw new NoCalls();
      this.#at = start;
      this.#value(0);
      return null;
    });
    return {
      name,
      arguments: writeWritten(objectOf(given.filter((one) => one !== null))),
    };
  }

  #several<T>(closing: string, one: () => T): T[] {
    const read: T[] = [];
    for (;;) {
      if (this.#takes(closing)) return read;
      read.push(one());
      if (this.#takes(closing)) return read;
      this.#expect(',');
    }
  }

  #value(depth: number): WrittenJson {
    if (depth > depthMax) throw new NoCalls();
    this.#match(blankPattern);
    const first = this.#text[this.#at] ?? '';
    if (first === '-' || first === '+') {
      this.#at++;
      const value = this.#value(depth + 1);
      if (value.kind !== 'word' || !/^-?[\d.]/.test(value.word)) throw new NoCalls();
      const isNegative = value.word.startsWith('-') !== (first === '-');
      return {
        kind: 'word',
        word: (isNegative ? '-' : '') + value.word.replace(/^-/, ''),
      };
    }
    if (this.#takes('['))
      return {
        kind: 'array',
        items: this.#several(']', () => this.#value(depth + 1)),
      };
    if (this.#takes('(')) return this.#group(depth);
    if (this.#takes('{')) return this.#table(depth);
    if (this.#isString()) {
      let text = '';
      while (this.#isString()) text += this.#string();
      return textOf(text);
    }
    if (/[\d.]/.test(first))
      return {
        kind: 'word',
        word: numberOf(this.#word(numberPattern), this.#isStrict),
      };
    const word = this.#word(namePattern);
    if (!Object.hasOwn(words, word)) throw new NoCalls();
    return { kind: 'word', word: words[word]! };
  }

  /** A value in brackets, or a tuple, which JSON has as a list. */
  #group(depth: number): WrittenJson {
    if (this.#takes(')')) return { kind: 'array', items: [] };
    const first = this.#value(depth + 1);
    if (this.#takes(')')) return first;
    this.#expect(',');
    return {
      kind: 'array',
      items: [first, ...this.#several(')', () => this.#value(depth + 1))],
    };
  }

  /** A dict, or a set, which JSON has as a list. */
  #table(depth: number): WrittenJson {
    if (this.#takes('}')) return objectOf([]);
    const first = this.#value(depth + 1);
    if (!this.#takes(':')) {
      if (this.#takes('}')) return { kind: 'array', items: [first] };
      this.#expect(',');
      return {
        kind: 'array',
        items: [first, ...this.#several('}', () => this.#value(depth + 1))],
      };
    }
    const entries: [string, WrittenJson][] = [[keyOf(first), this.#value(depth + 1)]];
    if (this.#takes('}')) return objectOf(entries);
    this.#expect(',');
    const rest = this.#several('}', (): [string, WrittenJson] => {
      const key = keyOf(this.#value(depth + 1));
      this.#expect(':');
      return [key, this.#value(depth + 1)];
    });
    return objectOf([...entries, ...rest]);
  }

  #isString(): boolean {
    this.#match(blankPattern);
    stringPattern.lastIndex = this.#at;
    return stringPattern.test(this.#text);
  }

  #string(): string {
    stringPattern.lastIndex = this.#at;
    const [opening, prefix, quote] = stringPattern.exec(this.#text)! as unknown as [string, string, string];
    this.#at += opening.length;
    const isRaw = /r/i.test(prefix);
    let said = '';
    while (!this.#text.startsWith(quote, this.#at)) {
      const letter = this.#text[this.#at];
      if (letter === undefined || (this.#isStrict && letter === '\n' && quote.length === 1)) throw new NoCalls();
      if (/f/i.test(prefix) && (letter === '{' || letter === '}')) throw new NoCalls();
      this.#at++;
      if (letter !== '\\') said += letter;
      else said += isRaw ? letter + (this.#text[this.#at++] ?? '') : this.#escape();
    }
    this.#at += quote.length;
    return said;
  }

  #escape(): string {
    const coded = this.#match(/x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8}|[0-7]{1,3}/y);
    if (coded !== '') {
      const code = /^[xuU]/.test(coded) ? parseInt(coded.slice(1), 16) : parseInt(coded, 8);
      if (code > 0x10ffff) throw new NoCalls();
      return String.fromCodePoint(code);
    }
    const letter = this.#text[this.#at++] ?? '';
    if ('xuUN'.includes(letter)) throw new NoCalls();
    return escapes[letter] ?? `\\${letter}`;
  }

  #match(pattern: RegExp): string {
    pattern.lastIndex = this.#at;
    const [found] = pattern.exec(this.#text) ?? [''];
    this.#at += found.length;
    return found;
  }

  #word(pattern: RegExp): string {
    this.#match(blankPattern);
    const found = this.#match(pattern);
    if (found === '') throw new NoCalls();
    return found;
  }

  #takes(word: string): boolean {
    this.#match(blankPattern);
    if (!this.#text.startsWith(word, this.#at)) return false;
    this.#at += word.length;
    return true;
  }

  #expect(word: string): void {
    if (!this.#takes(word)) throw new NoCalls();
  }
}

const stringPattern = /([rRuUfF]?)('''|"""|'|")/y;

/** Python's json.dumps writes keys that are no texts as texts. */
function keyOf(key: WrittenJson): string {
  if (key.kind === 'text') return key.text;
  if (key.kind === 'word') return key.word;
  throw new NoCalls();
}

/** A number of Python as JSON; digits keep their form if JSON allows it. */
function numberOf(written: string, isStrict: boolean): string {
  const text = written.replaceAll('_', '');
  if (/^(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/.test(text)) return text;
  if (/^0[xob]/i.test(text) || /^0+$/.test(text)) return String(BigInt(text));
  if (/^\d+$/.test(text) && !isStrict) return String(BigInt(text));
  if (/^\d+$/.test(text) || !Number.isFinite(Number(text))) throw new NoCalls();
  return String(Number(text));
}
