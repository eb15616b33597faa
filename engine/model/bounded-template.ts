import { Environment, Interpreter, Template } from '@huggingface/jinja';
import { minuteOf } from '../../core/minute-of.ts';
import {
  templateBlanksMax,
  templateBytesMax,
  templateCharactersMax,
  templateDepthMax,
  templateRangeMax,
  templateWorkMax,
} from '../limits.ts';
import {
  countCall,
  countFilter,
  countMethod,
  countOperator,
  countShown,
  countSlice,
  countTest,
  sizeOf,
  type TemplateArguments,
  type TemplateValue,
} from './template-costs.ts';
import { TemplateMeter } from './template-meter.ts';
import { pythonText, stripped } from './python-text.ts';

interface Bounds {
  /** Time for strftime_now, in the format of {@link minuteOf}; null = the current time. */
  readonly time?: string | null;
  readonly workMax?: number;
  readonly bytesMax?: number;
}

/**
 * Renders a chat template like Template.render, within bounds on work and memory. A template comes with a model's files, so a hostile one
 * could block the whole process. Evaluations, loop turns and sizes of values are counted before the work is done, so a template ends at the
 * same place on every machine.
 */
export function renderBounded(
  template: Template,
  variables: Readonly<Record<string, unknown>>,
  { time = null, workMax = templateWorkMax, bytesMax = templateBytesMax }: Bounds = {},
): string {
  const meter = new TemplateMeter({ stepsMax: workMax, bytesMax });
  const scope = new NewScope();
  for (const [name, value] of Object.entries({ ...globalsOf(meter, time), ...variables })) scope.set(name, value);
  const rendered = new BoundedEvaluator(scope, meter).run(template.parsed).value;
  if (typeof rendered === 'string') return rendered;
  throw new TypeError(`expected a template that gives a text, got ${typeof rendered}`);
}

/** Throws if the text is not a Jinja template, or is so long or has so many blanks that parsing would take minutes. */
export function compileTemplate(template: string): Template {
  if (template.length > templateCharactersMax)
    throw new SyntaxError(`expected a template of at most ${templateCharactersMax} letters, got ${template.length}.`);
  if (blanksInARow(template) > templateBlanksMax)
    throw new SyntaxError(`expected at most ${templateBlanksMax} blanks in a row in a template.`);
  return new Template(template.replaceAll(/\r\n?/g, '\n')); // jinja2 ends each line of a template so
}

interface Scope {
  set(name: string, value: unknown): unknown;
  lookupVariable(name: string): TemplateValue;
}

/** A node of a parsed template; its other fields belong to the package. */
interface Part {
  readonly type: string;
  readonly [field: string]: unknown;
}

/** A node replaced by its value: the cost of an operation can only be counted once its operands are known. */
interface Given extends Part {
  readonly type: 'Given';
  readonly given: TemplateValue;
}

/** The body of a loop. `state` belongs to one run of the loop, whose remaining turns do nothing once it has ended. */
interface Turn extends Part {
  readonly type: 'Turn';
  readonly body: readonly Part[];
  readonly state: { isOver: boolean };
}

/** Leaves a turn of a loop, and takes along what the turn has written: the package would lose it. */
class LeavesTurn extends Error {
  readonly endsLoop: boolean;
  written = '';

  constructor(endsLoop: boolean) {
    super('a loop is left outside of a loop.');
    this.endsLoop = endsLoop;
  }
}

interface Call extends Part {
  readonly callee: Part;
  readonly args: readonly Part[];
}

/**
 * Methods of the package's interpreter that are counted here. Its own types do not resolve under Node's module resolution, and mark these
 * as private.
 */
interface Evaluator {
  run(program: unknown): TemplateValue;
  evaluate(node: Part | undefined, scope: Scope): TemplateValue;
  evaluateBlock(statements: readonly Part[], scope: Scope): TemplateValue;
  evaluateBinaryExpression(node: Part, scope: Scope): TemplateValue;
  evaluateTestExpression(node: Part, scope: Scope): TemplateValue;
  evaluateMemberExpression(node: Part, scope: Scope): TemplateValue;
  evaluateSliceExpression(object: TemplateValue, node: Part, scope: Scope): TemplateValue;
  evaluateCallExpression(node: Call, scope: Scope): TemplateValue;
  evaluateCallStatement(node: Part, scope: Scope): TemplateValue;
  evaluateFor(node: Part, scope: Scope): TemplateValue;
  evaluateMacro(node: Part, scope: Scope): TemplateValue;
  evaluateSet(node: Part, scope: Scope): TemplateValue;
  applyFilter(operand: TemplateValue, filter: Part, scope: Scope): TemplateValue;
}
const NewScope = Environment as unknown as new () => Scope;
const Evaluating = Interpreter as unknown as new (scope: Scope) => Evaluator;

/** Bytes for one evaluation, one loop turn, and the methods of a value, which are created on first use. */
const [evaluationBytes, turnBytes, methodsBytes] = [64, 256, 2_048];
/** Steps for an empty loop turn, which creates a scope and nine variables. */
const turnSteps = 8;
const methodsSteps = 16;
/** Steps for an unknown name: the package throws an exception. */
const missingSteps = 8;
/** Steps for leaving a loop turn early: the package throws an exception. */
const thrownSteps = 32;
/** How many scopes can be searched for a name in the time of one step. */
const scopesOfStep = 16;

const literals = ['StringLiteral', 'IntegerLiteral', 'FloatLiteral'];

class BoundedEvaluator extends Evaluating {
  readonly #meter: TemplateMeter;
  readonly #scope: Scope;
  /** The method name and its value, by the function that represents the method. */
  readonly #methods = new WeakMap<TemplateValue, { readonly name: string; readonly of: TemplateValue }>();
  readonly #macros = new WeakSet<TemplateValue>();
  /** Values whose methods exist already. */
  readonly #opened = new WeakSet<TemplateValue>();
  #depth = 0;

  constructor(scope: Scope, meter: TemplateMeter) {
    super(scope);
    this.#scope = scope;
    this.#meter = meter;
  }

  override evaluate(node: Part | undefined, scope: Scope): TemplateValue {
    if (node?.type === 'Given') return (node as Given).given;
    if (node?.type === 'Turn') return this.#turn(node as Turn, scope);
    // Beyond this depth the stack would overflow at a different place on each machine, and the package would report a missing name.
    if (this.#depth >= templateDepthMax)
      throw new Error(`its parts are more than ${templateDepthMax} deep in one another.`);
    const what = node === undefined ? 'nothing' : `its next part (${node.type})`;
    this.#meter.spend(this.#stepsOf(node), what);
    this.#meter.hold(evaluationBytes, what);
    if (node?.type === 'Break' || node?.type === 'Continue') throw new LeavesTurn(node.type === 'Break');
    this.#depth++;
    try {
      const value = super.evaluate(node, scope);
      if (node?.type === 'Identifier' && value.type === 'UndefinedValue') this.#meter.spend(missingSteps, what);
      return value;
    } finally {
      this.#depth--;
    }
  }

  #stepsOf(node: Part | undefined): number {
    if (node?.type === 'Identifier') return 1 + Math.floor(this.#depth / scopesOfStep);
    return node?.type === 'Break' || node?.type === 'Continue' ? thrownSteps : 1;
  }

  override evaluateBlock(statements: readonly Part[], scope: Scope): TemplateValue {
    let written = '';
    for (const statement of statements) {
      try {
        written += this.#shown(statement, scope);
      } catch (error) {
        if (error instanceof LeavesTurn) error.written = written + error.written;
        throw error;
      }
    }
    return this.#textValue(written);
  }

  /** What a statement writes: an expression its value, as Python's str() has it. */
  #shown(statement: Part, scope: Scope): string {
    const value = this.evaluate(statement, scope);
    if (value.type === 'UndefinedValue' || (value.type === 'NullValue' && !isExpression(statement))) return '';
    countShown(this.#meter, value);
    return pythonText(value) ?? (value as { toString(): string }).toString();
  }

  #turn({ body, state }: Turn, scope: Scope): TemplateValue {
    if (state.isOver) return this.#textValue('');
    try {
      return this.evaluateBlock(body, scope);
    } catch (error) {
      if (!(error instanceof LeavesTurn)) throw error;
      state.isOver = error.endsLoop;
      return this.#textValue(error.written);
    }
  }

  override evaluateSet(node: Part, scope: Scope): TemplateValue {
    return this.#kept(() => super.evaluateSet(node, scope));
  }

  #textValue(text: string): TemplateValue {
    return super.evaluate({ type: 'StringLiteral', value: text }, this.#scope);
  }

  /** A block whose text is kept, not written: what it wrote before a loop was left is lost in jinja2 too. */
  #kept(work: () => TemplateValue): TemplateValue {
    try {
      return work();
    } catch (error) {
      if (error instanceof LeavesTurn) error.written = '';
      throw error;
    }
  }

  override evaluateBinaryExpression(node: Part, scope: Scope): TemplateValue {
    const operator = (node['operator'] as { readonly value: string }).value;
    if (operator === 'and' || operator === 'or') return super.evaluateBinaryExpression(node, scope);
    const [left, right] = [this.#valueOf(node['left'], scope), this.#valueOf(node['right'], scope)];
    countOperator(this.#meter, operator, left, right);
    return super.evaluateBinaryExpression({ ...node, left: given(left), right: given(right) }, scope);
  }

  override evaluateTestExpression(node: Part, scope: Scope): TemplateValue {
    const operand = this.#valueOf(node['operand'], scope);
    countTest(this.#meter, operand, (node['test'] as { readonly value: string }).value);
    return super.evaluateTestExpression({ ...node, operand: given(operand) }, scope);
  }

  override evaluateMemberExpression(node: Part, scope: Scope): TemplateValue {
    const of = this.#valueOf(node['object'], scope);
    const property = node['property'] as Part;
    const isSlice = node['computed'] === true && property.type === 'SliceExpression';
    const name = node['computed'] === true && !isSlice ? this.#valueOf(property, scope) : null;
    const member = { ...node, object: given(of), property: name === null ? property : given(name) };
    const found = super.evaluateMemberExpression(member, scope);
    if (found.type !== 'FunctionValue') return found;
    if (!this.#opened.has(of)) {
      this.#opened.add(of);
      this.#meter.items(methodsSteps, methodsBytes / methodsSteps, 'a method');
    }
    this.#methods.set(found, { name: String(name === null ? property['value'] : name.value), of });
    return found;
  }

  override evaluateSliceExpression(of: TemplateValue, node: Part, scope: Scope): TemplateValue {
    countSlice(this.#meter, of);
    return super.evaluateSliceExpression(of, node, scope);
  }

  override evaluateCallExpression(node: Call, scope: Scope): TemplateValue {
    const counted = this.#counted(node, scope);
    const method = this.#methods.get((counted.callee as Given).given);
    if (method && typeof method.of.value === 'string' && isStrip(method.name))
      return this.#stripped(method.of, method.name, this.#arguments(counted.args, scope).values);
    return super.evaluateCallExpression(counted, scope);
  }

  override evaluateCallStatement(node: Part, scope: Scope): TemplateValue {
    this.#meter.spend(partsIn(node), 'a call');
    return super.evaluateCallStatement({ ...node, call: this.#counted(node['call'] as Call, scope) }, scope);
  }

  override evaluateFor(node: Part, scope: Scope): TemplateValue {
    const over = node['iterable'] as Part;
    const isSelected = over.type === 'SelectExpression';
    const items = this.#valueOf(isSelected ? over['lhs'] : over, scope);
    const what = `a loop over ${sizeOf(items)} items`;
    this.#meter.spend(sizeOf(items) * turnSteps, what);
    this.#meter.hold(sizeOf(items) * turnBytes, what);
    const iterable = isSelected ? { ...over, lhs: given(items) } : given(items);
    const turn: Turn = { type: 'Turn', body: node['body'] as readonly Part[], state: { isOver: false } };
    return super.evaluateFor({ ...node, iterable, body: [turn] }, scope);
  }

  override evaluateMacro(node: Part, scope: Scope): TemplateValue {
    this.#meter.spend(partsIn(node), 'a macro'); // each macro definition walks through it again
    const result = super.evaluateMacro(node, scope);
    this.#macros.add(scope.lookupVariable((node['name'] as { readonly value: string }).value));
    return result;
  }

  override applyFilter(operand: TemplateValue, filter: Part, scope: Scope): TemplateValue {
    const call = filter.type === 'CallExpression' ? (filter as Call) : null;
    const { parts, values } = this.#arguments(call?.args ?? [], scope);
    const name = String((call?.callee ?? filter)['value']);
    const of = this.#operandOf(name, operand, scope);
    countFilter(this.#meter, name, of, values);
    if (name === 'trim') return this.#stripped(of, 'strip', values, 'chars');
    return super.applyFilter(of, call === null ? filter : { ...call, args: parts }, scope);
  }

  /** What jinja2's filter takes a missing value for, or a value that it first makes a text. */
  #operandOf(name: string, operand: TemplateValue, scope: Scope): TemplateValue {
    if (operand.type === 'UndefinedValue') {
      if (emptyAsText.has(name)) return this.#textValue('');
      return emptyAsList.has(name) ? super.evaluate({ type: 'ArrayLiteral', value: [] }, scope) : operand;
    }
    if (!madeTexts.has(name) || operand.type === 'StringValue') return operand;
    countShown(this.#meter, operand);
    const text = pythonText(operand);
    return text === null ? operand : this.#textValue(text);
  }

  #stripped(
    of: TemplateValue,
    side: 'strip' | 'lstrip' | 'rstrip',
    given: TemplateArguments,
    name = '',
  ): TemplateValue {
    const characters = given.positional[0]?.value ?? given.named.get(name)?.value ?? null;
    if (characters !== null && typeof characters !== 'string') throw new Error(`${side}() expects a text.`);
    if (typeof of.value !== 'string') throw new Error(`the filter "trim" of a value of type ${of.type}.`);
    if (characters !== null) this.#meter.spend(Math.ceil((of.value.length * characters.length) / 64), `${side}()`);
    return this.#textValue(stripped(of.value, side, characters));
  }

  /** Returns the call with its known values filled in, after its cost was counted. */
  #counted(call: Call, scope: Scope): Call {
    const { parts, values } = this.#arguments(call.args, scope);
    const callee = this.evaluate(call.callee, scope);
    const method = this.#methods.get(callee);
    if (method) countMethod(this.#meter, method.name, method.of, values);
    else if (!this.#macros.has(callee)) countCall(this.#meter, values);
    return { ...call, args: parts, callee: given(callee) };
  }

  /** Arguments of a call: their values, and nodes that stand for the values. Literals stay, because the package looks at some of them. */
  #arguments(
    args: readonly Part[],
    scope: Scope,
  ): { readonly parts: readonly Part[]; readonly values: TemplateArguments } {
    const positional: TemplateValue[] = [];
    const named = new Map<string, TemplateValue>();
    const known = new Map<Part, Part>();
    const isNamed = ({ type }: Part): boolean =>
      type === 'KeywordArgumentExpression' || type === 'KeywordSpreadExpression';
    // Positional arguments come first, in the package's order.
    for (const part of args.filter((each) => !isNamed(each))) {
      const isSpread = part.type === 'SpreadExpression';
      const value = this.#valueOf(isSpread ? part['argument'] : part, scope);
      if (isSpread) known.set(part, { ...part, argument: given(value) });
      else if (!literals.includes(part.type)) known.set(part, given(value));
      if (!isSpread) positional.push(value);
      else this.#spread(value, Array.isArray(value.value) ? (value.value as TemplateValue[]) : [], positional);
    }
    for (const part of args.filter(isNamed)) {
      const isSpread = part.type === 'KeywordSpreadExpression';
      const field = isSpread ? 'argument' : 'value';
      const value = this.#valueOf(part[field], scope);
      known.set(part, { ...part, [field]: given(value) });
      if (!isSpread) named.set((part['key'] as { readonly value: string }).value, value);
      else if (value.value instanceof Map) {
        this.#meter.items(value.value.size, evaluationBytes, 'arguments');
        for (const [key, each] of value.value as Map<string, TemplateValue>) named.set(key, each);
      }
    }
    return { parts: args.map((part) => known.get(part) ?? part), values: { positional, named } };
  }

  #spread(of: TemplateValue, items: readonly TemplateValue[], into: TemplateValue[]): void {
    this.#meter.items(sizeOf(of), evaluationBytes, 'arguments');
    for (const item of items) into.push(item);
  }

  #valueOf(part: unknown, scope: Scope): TemplateValue {
    return this.evaluate(part as Part | undefined, scope);
  }
}

function given(value: TemplateValue): Given {
  return { type: 'Given', given: value };
}

/** Filters that take a missing value for an empty text, and for an empty list. */
const emptyAsText: ReadonlySet<string> = new Set(['trim', 'upper', 'lower', 'title', 'capitalize', 'replace', 'length', 'count', 'join', 'string', 'indent']); // prettier-ignore
const emptyAsList: ReadonlySet<string> = new Set(['list', 'map', 'select', 'reject', 'selectattr', 'rejectattr', 'sort', 'unique', 'first', 'last', 'items']); // prettier-ignore
/** Filters that write any value out first. */
const madeTexts: ReadonlySet<string> = new Set(['trim', 'upper', 'lower', 'title', 'capitalize', 'replace', 'string']);
const statements: ReadonlySet<string> = new Set(['Set', 'If', 'For', 'Macro', 'CallStatement', 'FilterStatement', 'Comment', 'Turn', 'Program']); // prettier-ignore

function isExpression({ type }: Part): boolean {
  return !statements.has(type);
}

function isStrip(name: string): name is 'strip' | 'lstrip' | 'rstrip' {
  return name === 'strip' || name === 'lstrip' || name === 'rstrip';
}

const countedParts = new WeakMap<object, number>();

/** Counts a node with all its descendants. */
function partsIn(part: object): number {
  const known = countedParts.get(part);
  if (known !== undefined) return known;
  let count = 0;
  const left: unknown[] = [part];
  while (left.length > 0) {
    const next = left.pop();
    if (typeof next !== 'object' || next === null) continue;
    count++;
    for (const inside of next instanceof Map ? [...next.keys(), ...next.values()] : Object.values(next))
      left.push(inside);
  }
  countedParts.set(part, count);
  return count;
}

/** Counts blanks in a row: the parser examines each blank again for every blank before it. */
function blanksInARow(text: string): number {
  let most = 0;
  for (const [blanks] of text.matchAll(/\s+/g)) most = Math.max(most, blanks.length);
  return most;
}

/** Letters of the template's own text that are repeated. */
const saidMax = 2_000;
/** Steps per format letter: each part of a date is a call to the system. */
const formatSteps = 64;

/** As the package sets them, which does not export them; `range` bounded. */
const globalsOf = (meter: TemplateMeter, time: string | null) => ({
  false: false,
  true: true,
  none: null,
  False: false,
  True: true,
  None: null,
  raise_exception(message: unknown): never {
    throw new Error(typeof message === 'string' ? message.slice(0, saidMax) : 'it raises an exception without a text.');
  },
  range(...asked: readonly [number, (number | undefined)?, (number | undefined)?]): number[] {
    const [start, stop] = asked[1] === undefined ? [0, asked[0]] : [asked[0], asked[1]];
    const step = asked[2] ?? 1;
    const count = Math.max(0, Math.ceil((stop - start) / step));
    if (!(count <= templateRangeMax))
      throw new Error(`range() of ${count} numbers; expected at most ${templateRangeMax} and a step other than zero.`);
    meter.items(count, evaluationBytes, 'range()');
    return Array.from({ length: count }, (_, i) => start + i * step);
  },
  strftime_now(format: unknown): string {
    if (typeof format !== 'string') throw new Error('strftime_now() expects a text.');
    meter.spend(format.length * formatSteps, 'strftime_now()');
    return formatted(time ?? minuteOf(new Date()), format);
  },
});

/** The part of Python's strftime that templates use: `%d %b %Y`. `time` as {@link minuteOf} writes it. */
function formatted(time: string, format: string): string {
  const date = new Date(`${time}Z`); // of no zone: read as UTC, and told as UTC
  const named = (options: Intl.DateTimeFormatOptions) =>
    new Intl.DateTimeFormat('en', { ...options, timeZone: 'UTC' }).format(date);
  const parts: Readonly<Record<string, () => string>> = {
    '%Y': () => time.slice(0, 4),
    '%m': () => time.slice(5, 7),
    '%d': () => time.slice(8, 10),
    '%H': () => time.slice(11, 13),
    '%M': () => time.slice(14, 16),
    '%b': () => named({ month: 'short' }),
    '%B': () => named({ month: 'long' }),
    '%a': () => named({ weekday: 'short' }),
    '%A': () => named({ weekday: 'long' }),
    '%%': () => '%',
  };
  return format.replaceAll(/%[YmdHMbBaA%]/g, (token) => parts[token]!());
}
