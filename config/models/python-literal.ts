import { pythonEscapes } from '../../core/python-escapes.ts';
import type { JsonValue } from '../run-spec.ts';
import { type KeyPath, type Position, pathKey } from '../toml/positions.ts';
import { setOwn } from '../toml/tables.ts';

/**
 * Reads the literal that a Python file assigns to a name: texts, numbers, True, False, None, dictionaries, lists and
 * tuples of them. No code is run; anything that needs it is a PythonProblem. Follows Python's own grammar (reference,
 * "Lexical analysis" and "Displays for lists, sets and dictionaries").
 */
export class PythonProblem extends Error {
  readonly position: Position;
  /** The text found there, in words. */
  readonly received: string;
  constructor(position: Position, received: string) {
    super(`${position.line}:${position.column}: ${received}`);
    this.position = position;
    this.received = received;
  }
}

export interface PythonLiteral {
  readonly value: JsonValue;
  /** The position of each key and item. */
  at(path: KeyPath): Position | undefined;
  /** Keys that a dictionary has twice: the last counts. */
  readonly repeated: readonly { readonly path: KeyPath; readonly position: Position }[];
  /** Skipped lines: imports. */
  readonly passedOver: readonly string[];
}

/** The literal assigned to `name`; throws PythonProblem if the file does anything else but import. */
export function readPythonAssignment(text: string, name: string): PythonLiteral {
  return new PythonReader(text).assignment(name);
}

/** Deeper literals are no registry, and would exhaust the stack. */
const depthMax = 50;

class PythonReader {
  readonly #text: string;
  readonly #lineStarts: readonly number[];
  #at = 0;
  readonly #positions = new Map<string, Position>();
  readonly #repeated: { path: KeyPath; position: Position }[] = [];
  readonly #passedOver: string[] = [];

  constructor(text: string) {
    this.#text = text.replace(/^\uFEFF/, '').replaceAll(/\r\n?/g, '\n');
    this.#lineStarts = [0, ...[...this.#text.matchAll(/\n/g)].map(({ index }) => index + 1)];
  }

  assignment(name: string): PythonLiteral {
    let found: { value: JsonValue } | undefined;
    for (this.#skip(true); this.#at < this.#text.length; this.#skip(true)) {
      if (this.#isImport()) continue;
      if (/^(?:[rRuU]?["'])/.test(this.#rest(2))) {
        this.#strings(); // A docstring.
        this.#endOfStatement();
        continue;
      }
      const start = this.#at;
      const word = this.#name();
      if (word !== name) {
        this.#at = start;
        throw this.#problem(word === '' ? this.#here() : `a statement that begins with ${word}`);
      }
      this.#skip(false);
      if (this.#peek() === ':') this.#annotation();
      if (this.#peek() !== '=' || this.#text[this.#at + 1] === '=') {
        throw this.#problem(`${name} changed or used (${this.#here()}) instead of assigned once`);
      }
      if (found) throw this.#problem(`a second ${name} = …`);
      this.#at += 1;
      this.#skip(false);
      this.#positions.set(pathKey([name]), this.#position(start));
      found = { value: this.#value([name], 0) };
      this.#endOfStatement();
    }
    if (!found) throw new PythonProblem({ line: 1, column: 1 }, `no ${name} = {…}`);
    const positions = this.#positions;
    return {
      value: found.value,
      at: (path) => positions.get(pathKey(path)),
      repeated: this.#repeated,
      passedOver: this.#passedOver,
    };
  }

  /** `import x` and `from x import y`, also over several lines in parentheses; they decide nothing about a literal. */
  #isImport(): boolean {
    const line = /^(?:import\s+[^\n;]*|from\s+[\w.]+\s+import\s+(?:\([^()]*\)|[^\n;(]*))/.exec(
      this.#text.slice(this.#at),
    );
    if (!line) return false;
    this.#passedOver.push(line[0].split('\n')[0]!.trim());
    this.#at += line[0].length;
    this.#endOfStatement();
    return true;
  }

  /** `: dict[str, dict[str, str]]` before the equals sign. */
  #annotation(): void {
    const rest = /^:[\w\s.,[\]|"']*?(?==)/.exec(this.#text.slice(this.#at));
    if (!rest) throw this.#problem(`an annotation (${this.#here()})`);
    this.#at += rest[0].length;
  }

  #endOfStatement(): void {
    this.#skip(false);
    if (this.#peek() === ';') {
      this.#at += 1;
      return;
    }
    if (this.#at < this.#text.length && this.#peek() !== '\n') {
      throw this.#problem(`an expression that continues (${this.#here()})`);
    }
  }

  #value(path: KeyPath, depth: number): JsonValue {
    if (depth > depthMax) throw this.#problem(`more than ${depthMax} levels`);
    const char = this.#peek();
    if (char === '{') return this.#dictionary(path, depth);
    if (char === '[') return this.#list(path, ']', depth);
    if (char === '(') return this.#parenthesized(path, depth);
    if (/^(?:[A-Za-z]{0,2}["'])/.test(this.#rest(3))) return this.#strings();
    if (/^[-+]?[\d.]/.test(this.#rest(2))) return this.#number();
    const start = this.#at;
    const word = this.#name();
    if (word === 'True' || word === 'False') return word === 'True';
    if (word === 'None') return null;
    if (word === '') throw this.#problem(this.#here());
    const after = this.#peek();
    this.#at = start;
    const what = /^[\w.]+/.exec(this.#text.slice(start))![0];
    if (/environ|getenv/.test(what)) {
      throw this.#problem(`${what}, which has to be run; write the name of the variable as a text: "OPENAI_API_KEY"`);
    }
    throw this.#problem(
      after === '(' || this.#text[start + what.length] === '(' ? `a call of ${what}(…)` : `the name ${what}`,
    );
  }

  #dictionary(path: KeyPath, depth: number): JsonValue {
    const table: Record<string, JsonValue> = {};
    this.#at += 1;
    for (this.#skip(true); this.#peek() !== '}'; this.#skip(true)) {
      const position = this.#position(this.#at);
      if (this.#text.startsWith('**', this.#at)) throw this.#problem('another dictionary taken in with **');
      const key = this.#value(path, depth + 1);
      this.#skip(true);
      if (this.#peek() !== ':') {
        throw this.#problem(
          this.#peek() === ',' || this.#peek() === '}' ? 'a set' : `an expression as a key (${this.#here()})`,
        );
      }
      if (typeof key !== 'string') throw new PythonProblem(position, `a key that is no text: ${JSON.stringify(key)}`);
      this.#at += 1;
      this.#skip(true);
      const at = [...path, key];
      if (Object.hasOwn(table, key)) this.#repeated.push({ path: at, position });
      this.#positions.set(pathKey(at), position);
      setOwn(table, key, this.#value(at, depth + 1));
      this.#afterItem('}');
    }
    this.#at += 1;
    return table;
  }

  #list(path: KeyPath, close: string, depth: number): JsonValue[] {
    const items: JsonValue[] = [];
    this.#at += 1;
    for (this.#skip(true); this.#peek() !== close; this.#skip(true)) {
      const at = [...path, items.length];
      this.#positions.set(pathKey(at), this.#position(this.#at));
      items.push(this.#value(at, depth + 1));
      this.#afterItem(close);
    }
    this.#at += 1;
    return items;
  }

  /** A tuple, or only a value in parentheses. */
  #parenthesized(path: KeyPath, depth: number): JsonValue {
    const start = this.#at;
    this.#at += 1;
    this.#skip(true);
    if (this.#peek() !== ')') {
      const value = this.#value(path, depth + 1);
      this.#skip(true);
      if (this.#peek() === ')') {
        this.#at += 1;
        return value;
      }
    }
    this.#at = start;
    return this.#list(path, ')', depth);
  }

  #afterItem(close: string): void {
    this.#skip(true);
    if (this.#peek() === ',') this.#at += 1;
    else if (this.#peek() !== close) {
      const word = /^(?:for|if|or|and)\b/.exec(this.#rest(4))?.[0];
      throw this.#problem(
        word === 'for' ? 'a comprehension (for …)' : `an expression that continues (${this.#here()})`,
      );
    }
  }

  /** One text, or several beside one another, which Python joins. */
  #strings(): string {
    let joined = this.#string();
    for (;;) {
      const before = this.#at;
      this.#skip(true);
      if (!/^(?:[A-Za-z]{0,2}["'])/.test(this.#rest(3))) {
        this.#at = before;
        return joined;
      }
      joined += this.#string();
    }
  }

  #string(): string {
    const prefix = /^[A-Za-z]*/.exec(this.#rest(3))![0];
    if (/f/i.test(prefix)) throw this.#problem('an f-string, which has to be run');
    if (/b/i.test(prefix)) throw this.#problem('bytes (b"…")');
    if (!/^[ru]?$/i.test(prefix)) throw this.#problem(`a text with the prefix ${prefix}`);
    const isRaw = /r/i.test(prefix);
    const start = this.#at;
    this.#at += prefix.length;
    const quote = this.#peek();
    const fence = this.#text.startsWith(quote.repeat(3), this.#at) ? quote.repeat(3) : quote;
    this.#at += fence.length;
    let value = '';
    while (!this.#text.startsWith(fence, this.#at)) {
      const char = this.#peek();
      if (char === '' || (char === '\n' && fence.length === 1)) {
        this.#at = start;
        throw this.#problem('a text that does not end');
      }
      if (char !== '\\') {
        value += char;
        this.#at += 1;
      } else if (isRaw) {
        value += this.#rest(2);
        this.#at += 2;
      } else value += this.#escape();
    }
    this.#at += fence.length;
    return value;
  }

  #escape(): string {
    const rest = this.#rest(12);
    const hex = /^\\(?:x([\da-fA-F]{2})|u([\da-fA-F]{4})|U([\da-fA-F]{8}))/.exec(rest);
    const octal = /^\\([0-7]{1,3})/.exec(rest);
    const code = hex ? Number.parseInt((hex[1] ?? hex[2] ?? hex[3])!, 16) : octal ? Number.parseInt(octal[1]!, 8) : -1;
    if (code > 0x10ffff || /^\\[xuUN]/.test(rest) !== (hex !== null)) {
      throw this.#problem(`the escape ${rest.slice(0, 2)}`);
    }
    if (code >= 0) {
      this.#at += (hex ?? octal)![0].length;
      return String.fromCodePoint(code);
    }
    this.#at += 2;
    const simple = pythonEscapes[rest[1] ?? ''];
    return simple ?? rest.slice(0, 2); // Python keeps unknown escapes, with the backslash.
  }

  #number(): number {
    const written =
      /^[-+]?(?:0[xX][\da-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|(?:\d[\d_]*)?\.?(?:\d[\d_]*)?(?:[eE][-+]?\d+)?)/.exec(
        this.#text.slice(this.#at, this.#at + 64),
      )![0];
    const digits = written.replaceAll('_', '');
    const value = /^[-+]?0[xob]/i.test(digits)
      ? Number(digits.replace(/^[-+]/, '')) * (digits.startsWith('-') ? -1 : 1)
      : Number(digits);
    if (digits === '' || Number.isNaN(value)) throw this.#problem(this.#here());
    this.#at += written.length;
    if (/^[\w.]/.test(this.#rest(1))) throw this.#problem(this.#here());
    return value;
  }

  /** Skips spaces and comments; line breaks too if a statement cannot end. */
  #skip(newLines: boolean): void {
    for (;;) {
      const blank = (newLines ? /^[\s\f]+/ : /^(?:[ \t\f]|\\\n)+/).exec(this.#text.slice(this.#at, this.#at + 4096));
      if (blank) this.#at += blank[0].length;
      else if (this.#peek() === '#') {
        const end = this.#text.indexOf('\n', this.#at);
        this.#at = end === -1 ? this.#text.length : end;
      } else if (newLines && this.#text.startsWith('\\\n', this.#at)) this.#at += 2;
      else return;
      if (this.#at >= this.#text.length) return;
    }
  }

  #name(): string {
    const word = /^[A-Za-z_]\w*/.exec(this.#text.slice(this.#at, this.#at + 256))?.[0] ?? '';
    this.#at += word.length;
    return word;
  }

  #peek(): string {
    return this.#text[this.#at] ?? '';
  }

  #rest(chars: number): string {
    return this.#text.slice(this.#at, this.#at + chars);
  }

  /** The next few characters, but never the beginning of a text. */
  #here(): string {
    if (this.#at >= this.#text.length) return 'the end of the file';
    return `"${/^[^\n"']{1,20}/.exec(this.#text.slice(this.#at, this.#at + 20))?.[0].trim() ?? this.#peek()}"`;
  }

  #problem(received: string): PythonProblem {
    return new PythonProblem(this.#position(this.#at), received);
  }

  #position(offset: number): Position {
    // The last line that begins at or before it.
    let [low, high] = [0, this.#lineStarts.length];
    while (high - low > 1) {
      const middle = (low + high) >>> 1;
      if (this.#lineStarts[middle]! <= offset) low = middle;
      else high = middle;
    }
    return { line: low + 1, column: offset - this.#lineStarts[low]! + 1 };
  }
}
