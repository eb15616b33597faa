/**
 * The line and column of every key, table header and array element of a TOML file. smol-toml gives positions for syntax
 * errors only, and readers of an error need "line 14" first. The text has been parsed before, so this walks over valid
 * TOML and never fails.
 */
export interface Position {
  /** From 1, as editors count. */
  readonly line: number;
  readonly column: number;
  /** Missing for a single file. */
  readonly file?: string;
}

/** Keys of tables and positions in arrays, from the root. */
export type KeyPath = readonly (string | number)[];

export interface Positions {
  /** Position of a value; undefined if it was not written. */
  at(path: KeyPath): Position | undefined;
  /** In the order of reading; missing for a single file. */
  readonly files?: readonly string[];
}

export function findPositions(text: string): Positions {
  const found = new Scanner(text).scan();
  return { at: (path) => found.get(pathKey(path)) };
}

/** A path in its usual notation: `env[0].args.max_turns`. */
export function formatPath(path: KeyPath): string {
  let written = '';
  for (const part of path) {
    if (typeof part === 'number') written += `[${part}]`;
    else written += (written === '' ? '' : '.') + (/^[\w-]+$/.test(part) ? part : JSON.stringify(part));
  }
  return written;
}

/** One string per path, for maps and sets. */
export function pathKey(path: KeyPath): string {
  return JSON.stringify(path);
}

class Scanner {
  readonly #text: string;
  #at = 0;
  readonly #found = new Map<string, Position>();
  /** How many tables each array of tables has so far. */
  readonly #tableCounts = new Map<string, number>();
  /** Offsets of line starts. */
  readonly #lineStarts = [0];

  constructor(text: string) {
    this.#text = text;
    for (let i = text.indexOf('\n'); i >= 0; i = text.indexOf('\n', i + 1)) this.#lineStarts.push(i + 1);
  }

  scan(): ReadonlyMap<string, Position> {
    let table: KeyPath = [];
    for (this.#skipBlank(); this.#at < this.#text.length; this.#skipBlank()) {
      if (this.#peek() === '[') table = this.#header();
      else this.#keyValue(table);
    }
    return this.#found;
  }

  /** Reads `[a.b]` or `[[a.b]]`; returns the path of its keys. */
  #header(): KeyPath {
    const start = this.#at;
    const isArray = this.#text.startsWith('[[', this.#at);
    this.#at += isArray ? 2 : 1;
    const keys = this.#keys();
    this.#at += isArray ? 2 : 1;

    let path: (string | number)[] = [];
    for (const [i, key] of keys.entries()) {
      path = [...path, key];
      this.#note(path, start);
      const count = this.#tableCounts.get(pathKey(path)) ?? 0;
      if (isArray && i === keys.length - 1) {
        this.#tableCounts.set(pathKey(path), count + 1);
        path = [...path, count];
        this.#note(path, start);
      } else if (count > 0) {
        path = [...path, count - 1];
      }
    }
    return path;
  }

  #keyValue(table: KeyPath): void {
    const start = this.#at;
    let path = table;
    for (const key of this.#keys()) {
      path = [...path, key];
      this.#note(path, start);
    }
    this.#at += 1; // The equals sign.
    this.#skipSpaces();
    this.#value(path);
  }

  /** A key with its dots, up to the character that ends it: `=` or `]`. */
  #keys(): string[] {
    const keys: string[] = [];
    for (;;) {
      this.#skipSpaces();
      keys.push(this.#key());
      this.#skipSpaces();
      if (this.#peek() !== '.') return keys;
      this.#at += 1;
    }
  }

  #key(): string {
    const quote = this.#peek();
    if (quote === '"' || quote === "'") {
      const raw = this.#string();
      return quote === "'" ? raw.slice(1, -1) : unescape(raw.slice(1, -1));
    }
    return this.#takeWhile((char) => /[A-Za-z0-9_-]/.test(char));
  }

  #value(path: KeyPath): void {
    const first = this.#peek();
    if (first === '"' || first === "'") this.#string();
    else if (first === '[') this.#array(path);
    else if (first === '{') this.#inlineTable(path);
    else this.#takeWhile((char) => !',]}#\n'.includes(char));
  }

  #array(path: KeyPath): void {
    this.#at += 1;
    for (let i = 0; this.#hasItem(']'); i++) {
      this.#note([...path, i], this.#at);
      this.#value([...path, i]);
    }
  }

  #inlineTable(path: KeyPath): void {
    this.#at += 1;
    while (this.#hasItem('}')) this.#keyValue(path);
  }

  /** Moves to the next item of an array or inline table, or past its end. */
  #hasItem(close: string): boolean {
    this.#skipBlank();
    while (this.#peek() === ',') {
      this.#at += 1;
      this.#skipBlank();
    }
    if (this.#peek() !== close && this.#at < this.#text.length) return true;
    this.#at += 1;
    return false;
  }

  /** Any of the four kinds of string, with its quotes. */
  #string(): string {
    const start = this.#at;
    const quote = this.#peek();
    const fence = this.#text.startsWith(quote.repeat(3), this.#at) ? quote.repeat(3) : quote;
    this.#at += fence.length;
    while (this.#at < this.#text.length && !this.#text.startsWith(fence, this.#at)) {
      this.#at += quote === '"' && this.#peek() === '\\' ? 2 : 1;
    }
    this.#at += fence.length;
    // A multi-line string may end in one or two quotes of its own.
    if (fence.length === 3) this.#takeWhile((char) => char === quote);
    return this.#text.slice(start, this.#at);
  }

  #note(path: KeyPath, offset: number): void {
    const key = pathKey(path);
    if (!this.#found.has(key)) this.#found.set(key, this.#positionOf(offset));
  }

  #positionOf(offset: number): Position {
    let [low, high] = [0, this.#lineStarts.length - 1];
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (this.#lineStarts[middle]! <= offset) low = middle;
      else high = middle - 1;
    }
    return { line: low + 1, column: offset - this.#lineStarts[low]! + 1 };
  }

  #skipBlank(): void {
    this.#takeWhile((char) => /[\s\uFEFF]/.test(char));
    while (this.#peek() === '#') {
      this.#takeWhile((char) => char !== '\n');
      this.#takeWhile((char) => /\s/.test(char));
    }
  }

  #skipSpaces(): void {
    this.#takeWhile((char) => char === ' ' || char === '\t');
  }

  #takeWhile(accepts: (char: string) => boolean): string {
    const start = this.#at;
    while (this.#at < this.#text.length && accepts(this.#text[this.#at]!)) this.#at += 1;
    return this.#text.slice(start, this.#at);
  }

  #peek(): string {
    return this.#text[this.#at] ?? '';
  }
}

const escapes: Readonly<Record<string, string>> = { b: '\b', t: '\t', n: '\n', f: '\f', r: '\r', e: '\u001B' };

function unescape(raw: string): string {
  return raw.replaceAll(/\\(?:u([\da-fA-F]{4})|U([\da-fA-F]{8})|x([\da-fA-F]{2})|(.))/g, (_, u4, u8, x2, char) => {
    const code: string | undefined = u4 ?? u8 ?? x2;
    return code === undefined ? (escapes[char] ?? char) : String.fromCodePoint(Number.parseInt(code, 16));
  });
}
