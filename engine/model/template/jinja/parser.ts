import { pythonEscapes } from '../../../../core/python-escapes.ts';
import { templateDepthMax } from '../../../limits.ts';
import type {
  BinaryOperator,
  CallArguments,
  Comparison,
  Expression,
  ForNode,
  MacroNode,
  Signature,
  Statement,
  Target,
} from './nodes.ts';
import { type Token, type TokenType, normalized, syntaxError, tokensOf } from './tokens.ts';
import { Float, type Value, intOf } from './values.ts';

/** Parses a template as jinja2 does with the extensions of transformers: loop controls and `{% generation %}`. */
export function parseTemplate(template: string): readonly Statement[] {
  const source = normalized(template);
  return new Parser(source, tokensOf(source)).template();
}

const constants: ReadonlyMap<string, Value> = new Map<string, Value>([
  ['true', true],
  ['True', true],
  ['false', false],
  ['False', false],
  ['none', null],
  ['None', null],
]);
const comparisons: ReadonlySet<string> = new Set(['==', '!=', '<', '<=', '>', '>=']);
const noArguments: CallArguments = { positional: [], named: [], spread: null, namedSpread: null };
/** Statements of jinja2 that chat templates do not need: they read other templates, or change how text is escaped. */
const unsupported: ReadonlySet<string> = new Set([
  'block',
  'extends',
  'include',
  'import',
  'from',
  'autoescape',
  'print',
]);

class Parser {
  readonly #source: string;
  readonly #tokens: readonly Token[];
  #next = 0;
  #depth = 0;
  /** Number of loops around the next statement, within the innermost macro or call block. */
  #loops = 0;
  /** Names that are read, for each macro that surrounds the next statement. */
  readonly #read: Set<string>[] = [];

  constructor(source: string, tokens: readonly Token[]) {
    this.#source = source;
    this.#tokens = tokens;
  }

  template(): readonly Statement[] {
    const body = this.#body([]);
    if (this.#token.type !== 'eof') throw this.#unexpected();
    return body;
  }

  get #token(): Token {
    return this.#tokens[this.#next]!;
  }

  #is(type: TokenType, text?: string, ahead = 0): boolean {
    const token = this.#tokens[this.#next + ahead];
    return token?.type === type && (text === undefined || token.text === text);
  }

  #skip(type: TokenType, text?: string): boolean {
    if (!this.#is(type, text)) return false;
    this.#next++;
    return true;
  }

  #expect(type: TokenType, text?: string): Token {
    const token = this.#token;
    if (!this.#skip(type, text)) throw this.#unexpected(text ?? type.replace('_', ' '));
    return token;
  }

  #unexpected(wanted?: string): SyntaxError {
    const { type, text, at } = this.#token;
    const came = type === 'eof' ? 'its end' : text === '' ? type.replace('_', ' ') : JSON.stringify(text.slice(0, 50));
    return syntaxError(`${wanted === undefined ? '' : `expected ${wanted}, `}got ${came}`, this.#source, at);
  }

  #deeper<T>(parse: () => T): T {
    if (this.#depth >= templateDepthMax)
      throw new SyntaxError(`its parts are more than ${templateDepthMax} deep in one another.`);
    this.#depth++;
    try {
      return parse();
    } finally {
      this.#depth--;
    }
  }

  /** Statements up to a block that begins with one of these names; the name is the next token then. */
  #body(ends: readonly string[]): Statement[] {
    const found: Statement[] = [];
    for (;;) {
      const token = this.#token;
      if (token.type === 'data') {
        this.#next++;
        found.push({ kind: 'data', text: token.text });
      } else if (token.type === 'variable_begin') {
        this.#next++;
        found.push({ kind: 'output', items: [this.#tuple()] });
        this.#expect('variable_end');
      } else if (token.type === 'block_begin') {
        this.#next++;
        if (this.#token.type === 'name' && ends.includes(this.#token.text)) return found;
        found.push(this.#deeper(() => this.#statement()));
        this.#expect('block_end');
      } else {
        if (ends.length > 0) throw this.#unexpected(ends.map((end) => `{% ${end} %}`).join(' or '));
        return found;
      }
    }
  }

  /** The body of a block up to its end, or up to the given names. */
  #block(...ends: readonly string[]): Statement[] {
    this.#skip('operator', ':');
    this.#expect('block_end');
    return this.#body(ends);
  }

  #ended(end: string): Statement[] {
    const body = this.#block(end);
    this.#next++;
    return body;
  }

  #statement(): Statement {
    const { text: tag } = this.#expect('name');
    switch (tag) {
      case 'for':
        return this.#for();
      case 'if':
        return this.#if();
      case 'set':
        return this.#set();
      case 'macro':
        return this.#macro();
      case 'call':
        return this.#callBlock();
      case 'filter': {
        const filter = this.#filters(null, true);
        return { kind: 'filter block', filter: filter!, body: this.#ended('endfilter') };
      }
      case 'with':
        return this.#with();
      case 'generation':
        return { kind: 'generation', body: this.#apart(() => this.#ended('endgeneration')) };
      case 'break':
      case 'continue':
        if (this.#loops === 0) throw syntaxError(`{% ${tag} %} outside of a loop`, this.#source, this.#token.at);
        return { kind: tag };
      default:
        if (unsupported.has(tag))
          throw syntaxError(`{% ${tag} %} is not supported in chat templates`, this.#source, this.#token.at);
        throw syntaxError(`unknown tag {% ${tag.slice(0, 50)} %}`, this.#source, this.#token.at);
    }
  }

  #for(): ForNode {
    const target = this.#target(['in'], false);
    this.#expect('name', 'in');
    const over = this.#tuple({ withCondition: false, ends: ['recursive'] });
    const test = this.#skip('name', 'if') ? this.#expression() : null;
    const isRecursive = this.#skip('name', 'recursive');
    this.#loops++;
    const body = this.#block('endfor', 'else');
    this.#loops--;
    const otherwise = this.#expect('name').text === 'else' ? this.#ended('endfor') : [];
    return { kind: 'for', target, over, test, isRecursive, body, otherwise };
  }

  #if(): Statement {
    const branches: [Expression, Statement[]][] = [];
    for (;;) {
      const test = this.#tuple({ withCondition: false });
      branches.push([test, this.#block('elif', 'else', 'endif')]);
      const { text: next } = this.#expect('name');
      if (next === 'elif') continue;
      return { kind: 'if', branches, otherwise: next === 'else' ? this.#ended('endif') : [] };
    }
  }

  #set(): Statement {
    const target = this.#target([], true);
    if (this.#skip('operator', '=')) return { kind: 'set', target, value: this.#tuple() };
    const filter = this.#filters(null);
    return { kind: 'set block', target, filter, body: this.#ended('endset') };
  }

  #with(): Statement {
    const pairs: [Target, Expression][] = [];
    while (!this.#is('block_end')) {
      if (pairs.length > 0) this.#expect('operator', ',');
      const target = this.#target([], false);
      this.#expect('operator', '=');
      pairs.push([target, this.#expression()]);
    }
    return { kind: 'with', pairs, body: this.#ended('endwith') };
  }

  #macro(): MacroNode {
    const { text: name } = this.#expect('name');
    return this.#macroOf(name, () => this.#signature(), 'endmacro');
  }

  #callBlock(): Statement {
    let call: Expression | undefined;
    const withSignature = (): Signature => {
      const signature = this.#is('operator', '(') ? this.#signature() : { names: [], defaults: [] };
      call = this.#expression();
      return signature;
    };
    const caller = this.#macroOf('caller', withSignature, 'endcall');
    if (call?.kind !== 'call') throw syntaxError('{% call %} without a call', this.#source, this.#token.at);
    return { kind: 'call block', call, caller };
  }

  #macroOf(name: string, before: () => Signature, end: string): MacroNode {
    const read = new Set<string>();
    const signature = before();
    this.#read.push(read);
    const body = this.#apart(() => this.#ended(end));
    this.#read.pop();
    for (const outer of this.#read) for (const each of read) outer.add(each);
    const takes = new Set(['varargs', 'kwargs', 'caller'].filter((each) => read.has(each)));
    return { kind: 'macro', name, signature, body, takes };
  }

  /** Parses a block that cannot break out of a surrounding loop. */
  #apart<T>(parse: () => T): T {
    const loops = this.#loops;
    this.#loops = 0;
    const parsed = parse();
    this.#loops = loops;
    return parsed;
  }

  #signature(): Signature {
    const names: string[] = [];
    const defaults: Expression[] = [];
    this.#expect('operator', '(');
    while (!this.#is('operator', ')')) {
      if (names.length > 0) this.#expect('operator', ',');
      names.push(this.#expect('name').text);
      if (this.#skip('operator', '=')) defaults.push(this.#expression());
      else if (defaults.length > 0)
        throw syntaxError('non-default argument follows default argument', this.#source, this.#token.at);
    }
    this.#next++;
    return { names, defaults };
  }

  #target(ends: readonly string[], withMember: boolean): Target {
    const items: Target[] = [];
    let isTuple = false;
    while (!this.#endsTuple(ends)) {
      items.push(this.#oneTarget(withMember));
      if (!this.#skip('operator', ',')) break;
      isTuple = true;
    }
    if (items.length === 0) throw this.#unexpected('a name');
    return isTuple ? { kind: 'tuple', items } : items[0]!;
  }

  #oneTarget(withMember: boolean): Target {
    if (this.#skip('operator', '(')) {
      const target = this.#target([], withMember);
      this.#expect('operator', ')');
      return target;
    }
    const { text: name } = this.#expect('name');
    if (constants.has(name)) throw syntaxError(`can't assign to "${name}"`, this.#source, this.#token.at);
    if (!withMember || !this.#skip('operator', '.')) return { kind: 'name', name };
    for (const read of this.#read) read.add(name);
    return { kind: 'member', of: name, name: this.#expect('name').text };
  }

  #endsTuple(ends: readonly string[]): boolean {
    const { type, text } = this.#token;
    if (type === 'variable_end' || type === 'block_end') return true;
    return (type === 'operator' && text === ')') || (type === 'name' && ends.includes(text));
  }

  #tuple({
    withCondition = true,
    ends = [],
    inBrackets = false,
  }: { withCondition?: boolean; ends?: readonly string[]; inBrackets?: boolean } = {}): Expression {
    const items: Expression[] = [];
    let isTuple = false;
    while (!this.#endsTuple(ends)) {
      items.push(withCondition ? this.#expression() : this.#or());
      if (!this.#skip('operator', ',')) break;
      isTuple = true;
    }
    if (!isTuple && items.length === 1) return items[0]!;
    if (!isTuple && !inBrackets) throw this.#unexpected('an expression');
    return { kind: 'tuple', items };
  }

  #expression(): Expression {
    return this.#deeper(() => {
      let found = this.#or();
      while (this.#skip('name', 'if')) {
        const test = this.#or();
        const otherwise = this.#skip('name', 'else') ? this.#expression() : null;
        found = { kind: 'condition', test, value: found, otherwise };
      }
      return found;
    });
  }

  #or(): Expression {
    let left = this.#and();
    while (this.#skip('name', 'or')) left = { kind: 'or', left, right: this.#and() };
    return left;
  }

  #and(): Expression {
    let left = this.#not();
    while (this.#skip('name', 'and')) left = { kind: 'and', left, right: this.#not() };
    return left;
  }

  #not(): Expression {
    if (this.#skip('name', 'not')) return this.#deeper(() => ({ kind: 'not', of: this.#not() }));
    return this.#comparison();
  }

  #comparison(): Expression {
    const first = this.#sum();
    const rest: [Comparison, Expression][] = [];
    for (;;) {
      const { type, text } = this.#token;
      if (type === 'operator' && comparisons.has(text)) {
        this.#next++;
        rest.push([text as Comparison, this.#sum()]);
      } else if (this.#skip('name', 'in')) rest.push(['in', this.#sum()]);
      else if (this.#is('name', 'not') && this.#is('name', 'in', 1)) {
        this.#next += 2;
        rest.push(['not in', this.#sum()]);
      } else return rest.length === 0 ? first : { kind: 'compare', first, rest };
    }
  }

  #sum(): Expression {
    return this.#leftToRight(['+', '-'], () => this.#concat());
  }

  #concat(): Expression {
    const items = [this.#product()];
    while (this.#skip('operator', '~')) items.push(this.#product());
    return items.length === 1 ? items[0]! : { kind: 'concat', items };
  }

  #product(): Expression {
    return this.#leftToRight(['*', '/', '//', '%'], () =>
      this.#leftToRight(['**'], () => this.#unary({ withFilters: true })),
    );
  }

  #leftToRight(operators: readonly BinaryOperator[], operand: () => Expression): Expression {
    let left = operand();
    for (;;) {
      const { type, text } = this.#token;
      const operator = operators.find((each) => type === 'operator' && each === text);
      if (operator === undefined) return left;
      this.#next++;
      left = { kind: 'binary', operator, left, right: operand() };
    }
  }

  #unary({ withFilters }: { withFilters: boolean }): Expression {
    const sign = this.#skip('operator', '-') ? 'negative' : this.#skip('operator', '+') ? 'positive' : null;
    const value =
      sign === null
        ? this.#primary()
        : this.#deeper((): Expression => ({ kind: sign, of: this.#unary({ withFilters: false }) }));
    const found = this.#postfix(value);
    return withFilters ? this.#filtered(found) : found;
  }

  #primary(): Expression {
    const token = this.#token;
    this.#next++;
    if (token.type === 'name') {
      if (constants.has(token.text)) return { kind: 'constant', value: constants.get(token.text)! };
      for (const read of this.#read) read.add(token.text);
      return { kind: 'name', name: token.text };
    }
    if (token.type === 'string') {
      let text = unescaped(token.text);
      while (this.#is('string')) text += unescaped(this.#expect('string').text);
      return { kind: 'constant', value: text };
    }
    const digits = token.text.replaceAll('_', '');
    if (token.type === 'integer') return { kind: 'constant', value: intOf(BigInt(digits)) };
    if (token.type === 'float') return { kind: 'constant', value: new Float(Number(digits)) };
    if (token.type === 'operator') {
      if (token.text === '(') {
        const inside = this.#deeper(() => this.#tuple({ inBrackets: true }));
        this.#expect('operator', ')');
        return inside;
      }
      if (token.text === '[') return { kind: 'list', items: this.#list(']', () => this.#expression()) };
      if (token.text === '{') return { kind: 'dict', pairs: this.#list('}', () => this.#pair()) };
    }
    this.#next--;
    throw this.#unexpected('an expression');
  }

  #list<T>(end: string, item: () => T): T[] {
    const items: T[] = [];
    while (!this.#skip('operator', end)) {
      if (items.length > 0) {
        this.#expect('operator', ',');
        if (this.#skip('operator', end)) break;
      }
      items.push(item());
    }
    return items;
  }

  #pair(): readonly [Expression, Expression] {
    const key = this.#expression();
    this.#expect('operator', ':');
    return [key, this.#expression()];
  }

  #postfix(of: Expression): Expression {
    let found = of;
    for (;;) {
      if (this.#skip('operator', '.')) found = this.#attribute(found);
      else if (this.#skip('operator', '[')) found = this.#subscript(found);
      else if (this.#is('operator', '(')) found = { kind: 'call', callee: found, args: this.#arguments() };
      else return found;
    }
  }

  #attribute(of: Expression): Expression {
    const token = this.#token;
    this.#next++;
    if (token.type === 'name') return { kind: 'attribute', of, name: token.text };
    if (token.type !== 'integer') {
      this.#next--;
      throw this.#unexpected('a name or a number');
    }
    return { kind: 'item', of, key: { kind: 'constant', value: intOf(BigInt(token.text.replaceAll('_', ''))) } };
  }

  #subscript(of: Expression): Expression {
    const bounds: (Expression | null)[] = [this.#is('operator', ':') ? null : this.#expression()];
    while (this.#skip('operator', ':')) {
      const isLeftOut = this.#is('operator', ':') || this.#is('operator', ']') || this.#is('operator', ',');
      bounds.push(isLeftOut ? null : this.#expression());
    }
    if (this.#is('operator', ',')) throw new SyntaxError('several indices in one [ ] are not supported.');
    if (bounds.length > 3) throw this.#unexpected(']');
    this.#expect('operator', ']');
    return bounds.length === 1 ? { kind: 'item', of, key: bounds[0]! } : { kind: 'slice', of, bounds };
  }

  #arguments(): CallArguments {
    this.#expect('operator', '(');
    const [positional, named]: [Expression[], [string, Expression][]] = [[], []];
    let [spread, namedSpread]: [Expression | null, Expression | null] = [null, null];
    let isFirst = true;
    while (!this.#skip('operator', ')')) {
      if (!isFirst) {
        this.#expect('operator', ',');
        if (this.#skip('operator', ')')) break;
      }
      isFirst = false;
      const isLate = spread !== null || namedSpread !== null;
      if (!isLate && this.#skip('operator', '*')) spread = this.#expression();
      else if (namedSpread === null && this.#skip('operator', '**')) namedSpread = this.#expression();
      else if (namedSpread === null && this.#is('name') && this.#is('operator', '=', 1)) {
        const { text: name } = this.#expect('name');
        this.#next++;
        named.push([name, this.#expression()]);
      } else if (isLate || named.length > 0) throw this.#unexpected('a named argument');
      else positional.push(this.#expression());
    }
    return { positional, named, spread, namedSpread };
  }

  #filtered(of: Expression): Expression {
    let found = of;
    for (;;) {
      if (this.#is('operator', '|')) found = this.#filters(found)!;
      else if (this.#skip('name', 'is')) found = this.#test(found);
      else if (this.#is('operator', '(')) found = { kind: 'call', callee: found, args: this.#arguments() };
      else return found;
    }
  }

  #filters(of: Expression | null, startsInline = false): Expression | null {
    let found = of;
    let isInline = startsInline;
    while (isInline || this.#skip('operator', '|')) {
      isInline = false;
      const name = this.#dottedName();
      const args = this.#is('operator', '(') ? this.#arguments() : noArguments;
      found = { kind: 'filter', of: found, name, args };
    }
    return found;
  }

  #test(of: Expression): Expression {
    const isNegated = this.#skip('name', 'not');
    const name = this.#dottedName();
    const test: Expression = { kind: 'test', of, name, args: this.#testArguments() };
    return isNegated ? { kind: 'not', of: test } : test;
  }

  #testArguments(): CallArguments {
    if (this.#is('operator', '(')) return this.#arguments();
    const { type, text } = this.#token;
    const isOpening = type === 'operator' && (text === '[' || text === '{');
    if (!isOpening && !['name', 'string', 'integer', 'float'].includes(type)) return noArguments;
    if (type === 'name' && ['else', 'or', 'and'].includes(text)) return noArguments;
    if (type === 'name' && text === 'is') throw this.#unexpected('one test after "is"');
    return { ...noArguments, positional: [this.#postfix(this.#primary())] };
  }

  #dottedName(): string {
    let { text: name } = this.#expect('name');
    while (this.#skip('operator', '.')) name += `.${this.#expect('name').text}`;
    return name;
  }
}

/** Decodes a quoted text like Python's "unicode-escape" codec. */
function unescaped(quoted: string): string {
  return quoted
    .slice(1, -1)
    .replaceAll(
      /\\(?:([0-7]{1,3})|x([\da-fA-F]{2})|u([\da-fA-F]{4})|U([\da-fA-F]{8})|([\s\S]))/g,
      (whole, octal?: string, byte?: string, unit?: string, point?: string, other?: string) => {
        if (octal !== undefined) return String.fromCharCode(Number.parseInt(octal, 8));
        const hex = byte ?? unit ?? point;
        if (hex !== undefined) return String.fromCodePoint(Number.parseInt(hex, 16));
        if ('xuUN'.includes(other!)) throw new SyntaxError(`the escape \\${other} in a text is not supported.`);
        return pythonEscapes[other!] ?? whole;
      },
    );
}
