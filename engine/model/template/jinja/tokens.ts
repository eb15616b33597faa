import { shortened } from '../../../../core/steering.ts';

/** Blanks as Python's str.isspace() has them; JavaScript's `\s` differs in five characters. */
const blankClass = String.raw`[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]`;

export type TokenType =
  | 'data'
  | 'variable_begin'
  | 'variable_end'
  | 'block_begin'
  | 'block_end'
  | 'name'
  | 'string'
  | 'integer'
  | 'float'
  | 'operator'
  | 'eof';

export interface Token {
  readonly type: TokenType;
  readonly text: string;
  /** Position in the template, for the line in errors. */
  readonly at: number;
}

const closing: Readonly<Record<string, string>> = { '{': '}', '(': ')', '[': ']' };

const rules = {
  blanks: new RegExp(`${blankClass}+`, 'y'),
  float: /(?<!\.)(?:\d+_)*\d+(?:(?:\.(?:\d+_)*\d+)?e[+-]?(?:\d+_)*\d+|\.(?:\d+_)*\d+)/iy,
  integer: /0b(?:_?[01])+|0o(?:_?[0-7])+|0x(?:_?[\da-f])+|[1-9](?:_?\d)*|0(?:_?0)*/iy,
  name: /[\p{L}\p{N}\p{M}_]+/uy,
  string: /'[^'\\]*(?:\\[\s\S][^'\\]*)*'|"[^"\\]*(?:\\[\s\S][^"\\]*)*"/y,
  operator: /\/\/|\*\*|==|!=|>=|<=|[-+/*%~[\](){}><=.:|,;]/y,
  blockEnd: new RegExp(`\\+%\\}|-%\\}${blankClass}*|%\\}\\n?`, 'y'),
  variableEnd: new RegExp(`-\\}\\}${blankClass}*|\\}\\}`, 'y'),
  rawBegin: new RegExp(`\\{%([-+]?)${blankClass}*raw${blankClass}*(?:-%\\}${blankClass}*|%\\})`, 'y'),
  rawEnd: new RegExp(`\\{%([-+]?)${blankClass}*endraw${blankClass}*(?:\\+%\\}|-%\\}${blankClass}*|%\\}\\n?)`, 'y'),
};

const isBlank = new RegExp(`^${blankClass}$`);

export function isBlankCharacter(character: string): boolean {
  return isBlank.test(character);
}

/**
 * Splits a template into tokens as jinja2's lexer does with trim_blocks and lstrip_blocks, which transformers sets for chat
 * templates. The time is linear in the template's length.
 */
export function tokensOf(source: string): Token[] {
  return new Lexer(source).tokens();
}

/** A template as jinja2 reads it: each line ends with `\n`, and one at the end of the template is left out. */
export function normalized(template: string): string {
  const text = template.replaceAll(/\r\n?/g, '\n');
  return text.endsWith('\n') ? text.slice(0, -1) : text;
}

class Lexer {
  readonly #source: string;
  readonly #tokens: Token[] = [];
  #at = 0;
  /** Whether the last match ended a line, so that whitespace before a tag is at the beginning of a line. */
  #startsLine = true;

  constructor(source: string) {
    this.#source = source;
  }

  tokens(): Token[] {
    while (this.#at < this.#source.length) this.#root();
    this.#push('eof', '', this.#source.length);
    return this.#tokens;
  }

  #root(): void {
    const source = this.#source;
    const start = this.#at;
    const tag = tagFrom(source, start);
    if (tag < 0) {
      this.#data(source.slice(start), start);
      this.#at = source.length;
      return;
    }
    const raw = matchAt(rules.rawBegin, source, tag);
    const sign = raw ? raw[1]! : /[-+]/.test(source[tag + 2] ?? '') ? source[tag + 2]! : '';
    this.#data(this.#stripped(source.slice(start, tag), sign, source[tag + 1] === '{'), start);
    if (raw) {
      this.#moveTo(tag + raw[0].length);
      return this.#raw();
    }
    this.#at = tag + 2 + sign.length;
    if (source[tag + 1] === '#') return this.#comment(tag);
    if (source[tag + 1] === '%') return this.#inside('block', tag);
    return this.#inside('variable', tag);
  }

  #stripped(text: string, sign: string, isVariable: boolean): string {
    if (sign === '-') return withoutBlanksAtEnd(text);
    if (sign === '+' || isVariable) return text;
    const line = text.lastIndexOf('\n') + 1;
    if (line === 0 && !this.#startsLine) return text;
    return withoutBlanksAtEnd(text).length <= line ? text.slice(0, line) : text;
  }

  #data(text: string, at: number): void {
    if (text !== '') this.#push('data', text, at);
  }

  #comment(tag: number): void {
    const end = this.#source.indexOf('#}', this.#at);
    if (end < 0) throw this.#wrong('a comment without an end', tag);
    const sign = end > this.#at ? this.#source[end - 1] : '';
    let after = end + 2;
    if (sign === '-') after = this.#afterBlanks(after);
    else if (sign !== '+' && this.#source[after] === '\n') after++;
    this.#moveTo(after);
  }

  #raw(): void {
    const start = this.#at;
    for (let at = this.#source.indexOf('{%', start); at >= 0; at = this.#source.indexOf('{%', at + 2)) {
      const end = matchAt(rules.rawEnd, this.#source, at);
      if (!end) continue;
      this.#data(this.#stripped(this.#source.slice(start, at), end[1]!, false), start);
      this.#moveTo(at + end[0].length);
      return;
    }
    throw this.#wrong('{% raw %} without {% endraw %}', start);
  }

  /** Reads a `{% … %}` or `{{ … }}` to its end. */
  #inside(kind: 'block' | 'variable', tag: number): void {
    this.#push(`${kind}_begin`, '', tag);
    const end = kind === 'block' ? rules.blockEnd : rules.variableEnd;
    const open: string[] = [];
    while (this.#at < this.#source.length) {
      const ended = open.length === 0 ? matchAt(end, this.#source, this.#at) : null;
      if (ended) {
        this.#push(`${kind}_end`, '', this.#at);
        this.#moveTo(this.#at + ended[0].length);
        return;
      }
      this.#one(open);
    }
    throw this.#wrong(kind === 'block' ? '{% without %}' : '{{ without }}', tag);
  }

  #one(open: string[]): void {
    const blanks = matchAt(rules.blanks, this.#source, this.#at);
    if (blanks) {
      this.#at += blanks[0].length;
      return;
    }
    for (const type of ['float', 'integer', 'name', 'string', 'operator'] as const) {
      const found = matchAt(rules[type], this.#source, this.#at)?.[0];
      if (found === undefined) continue;
      if (type === 'operator') this.#balance(found, open);
      this.#push(type, found, this.#at);
      this.#at += found.length;
      return;
    }
    throw this.#wrong(`unexpected ${JSON.stringify(this.#source[this.#at])}`, this.#at);
  }

  #balance(operator: string, open: string[]): void {
    if (closing[operator] !== undefined) open.push(closing[operator]);
    else if (/^[)\]}]$/.test(operator) && open.pop() !== operator)
      throw this.#wrong(`unexpected "${operator}"`, this.#at);
  }

  #push(type: TokenType, text: string, at: number): void {
    this.#tokens.push({ type, text, at });
  }

  #moveTo(at: number): void {
    this.#startsLine = this.#source[at - 1] === '\n';
    this.#at = at;
  }

  #afterBlanks(at: number): number {
    return at + (matchAt(rules.blanks, this.#source, at)?.[0].length ?? 0);
  }

  #wrong(what: string, at: number): SyntaxError {
    return syntaxError(what, this.#source, at);
  }
}

export function syntaxError(what: string, source: string, at: number): SyntaxError {
  return new SyntaxError(
    `${what}, in line ${source.slice(0, at).split('\n').length}: ${shortened(tagAround(source, at))}`,
  );
}

/** The tag that a position is in, or the last one before it. */
function tagAround(source: string, at: number): string {
  const start = Math.max(0, ...['{%', '{{', '{#'].map((open) => source.lastIndexOf(open, at)));
  const [text] = /^\{%[^]*?%\}|^\{\{[^]*?\}\}|^\{#[^]*?#\}/.exec(source.slice(start)) ?? [source.slice(start)];
  return text;
}

function tagFrom(source: string, from: number): number {
  for (let at = source.indexOf('{', from); at >= 0; at = source.indexOf('{', at + 1)) {
    const next = source[at + 1];
    if (next === '%' || next === '{' || next === '#') return at;
  }
  return -1;
}

function matchAt(rule: RegExp, source: string, at: number): RegExpExecArray | null {
  rule.lastIndex = at;
  return rule.exec(source);
}

function withoutBlanksAtEnd(text: string): string {
  let end = text.length;
  while (end > 0 && isBlankCharacter(text[end - 1]!)) end--;
  return text.slice(0, end);
}
