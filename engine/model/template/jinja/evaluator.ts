import { templateDepthMax } from '../../../limits.ts';
import type { TemplateMeter } from '../template-meter.ts';
import { attributeOf, itemOf } from './access.ts';
import { filtered } from './filters.ts';
import { Loop } from './loop.ts';
import type { CallArguments, Expression, ForNode, MacroNode, Statement, Target } from './nodes.ts';
import { binary, compared, concatenated, negative, positive, slice } from './operators.ts';
import { Scope } from './scope.ts';
import { test } from './tests.ts';
import { shown } from './texts.ts';
import {
  type Arguments,
  Callable,
  Dict,
  isTrue,
  itemsOf,
  type Key,
  keyOf,
  List,
  Members,
  placeBytes,
  sizeOf,
  typeName,
  Undefined,
  type Value,
  valueBytes,
} from './values.ts';

/** Bytes for one evaluation and for one loop turn. */
const [evaluationBytes, turnBytes] = [64, 256];
/** Steps for an empty loop turn. */
const turnSteps = 8;
/** Scopes that can be searched for a name in the time of one step. */
const scopesOfStep = 16;

/** How a statement ended: the loop continues or is left. Text already written stays. */
type Ended = 'normally' | 'break' | 'continue';

/** Collects a template's output and counts every piece. */
class Output {
  readonly #meter: TemplateMeter;
  readonly #pieces: string[] = [];

  constructor(meter: TemplateMeter) {
    this.#meter = meter;
  }

  add(piece: string): void {
    if (piece === '') return;
    this.#meter.text(piece.length, 'writing it');
    this.#pieces.push(piece);
  }

  get text(): string {
    return this.#pieces.join('');
  }
}

/** Walks through a parsed template as jinja2 runs it, and counts each step before it is taken. */
export class Evaluator {
  readonly #meter: TemplateMeter;
  #depth = 0;

  constructor(meter: TemplateMeter) {
    this.#meter = meter;
  }

  render(template: readonly Statement[], scope: Scope): string {
    return this.#textOf(template, scope);
  }

  #textOf(body: readonly Statement[], scope: Scope): string {
    const out = new Output(this.#meter);
    this.#run(body, scope, out);
    return out.text;
  }

  #run(body: readonly Statement[], scope: Scope, out: Output): Ended {
    for (const statement of body) {
      const ended = this.#deeper(`its next part (${statement.kind})`, () => this.#statement(statement, scope, out));
      if (ended !== 'normally') return ended;
    }
    return 'normally';
  }

  /** Beyond this depth the stack would overflow at a different place on each machine. */
  #deeper<T>(what: string, work: () => T): T {
    if (this.#depth >= templateDepthMax)
      throw new Error(
        `its parts are more than ${templateDepthMax} deep in one another; perhaps a loop or a macro calls itself.`,
      );
    this.#meter.spend(1, what);
    this.#meter.hold(evaluationBytes, what);
    this.#depth++;
    try {
      return work();
    } finally {
      this.#depth--;
    }
  }

  #statement(node: Statement, scope: Scope, out: Output): Ended {
    switch (node.kind) {
      case 'data':
        out.add(node.text);
        return 'normally';
      case 'output':
        for (const item of node.items) out.add(shown(this.#value(item, scope), this.#meter, 'writing it'));
        return 'normally';
      case 'if': {
        const branch = node.branches.find(([test]) => isTrue(this.#value(test, scope)));
        return this.#run(branch ? branch[1] : node.otherwise, scope, out);
      }
      case 'for':
        return this.#for(node, this.#value(node.over, scope), { scope, out, depth: 1 });
      case 'break':
      case 'continue':
        return node.kind;
      case 'set':
        this.#assign(node.target, this.#value(node.value, scope), scope);
        return 'normally';
      case 'macro':
        scope.set(node.name, this.#macro(node, scope));
        return 'normally';
      case 'generation':
        out.add(this.#textOf(node.body, new Scope(scope)));
        return 'normally';
      case 'with': {
        const inside = new Scope(scope);
        const values = node.pairs.map(([, value]) => this.#value(value, scope));
        for (const [i, [target]] of node.pairs.entries()) this.#assign(target, values[i]!, inside);
        return this.#run(node.body, inside, out);
      }
      case 'call block': {
        const caller = this.#macro(node.caller, scope);
        out.add(shown(this.#call(node.call.callee, node.call.args, scope, caller), this.#meter, 'writing it'));
        return 'normally';
      }
      case 'set block':
      case 'filter block':
        return this.#textBlock(node, scope, out);
      default:
        return node satisfies never;
    }
  }

  #textBlock(node: Extract<Statement, { kind: 'set block' | 'filter block' }>, scope: Scope, out: Output): Ended {
    const inside = new Output(this.#meter);
    const ended = this.#run(node.body, new Scope(scope), inside);
    if (ended !== 'normally') return ended;
    const value = node.filter === null ? inside.text : this.#value(node.filter, scope, inside.text);
    if (node.kind === 'set block') this.#assign(node.target, value, scope);
    else out.add(shown(value, this.#meter, 'writing it'));
    return 'normally';
  }

  #for(
    node: ForNode,
    over: Value,
    { scope, out, depth }: { readonly scope: Scope; readonly out: Output; readonly depth: number },
  ): Ended {
    const items = itemsOf(over, this.#meter, 'a loop');
    const again = (inner: Value): Value => {
      const inside = new Output(this.#meter);
      this.#deeper('a loop in itself', () => this.#for(node, inner, { scope, out: inside, depth: depth + 1 }));
      return inside.text;
    };
    const loop = new Loop(this.#chosen(node, items, scope), {
      depth,
      again: node.isRecursive ? again : null,
      meter: this.#meter,
    });
    let hasWholeTurn = false;
    for (let item = loop.next(); item !== undefined; item = loop.next()) {
      const turn = new Scope(scope);
      turn.set('loop', loop.value);
      this.#assign(node.target, item, turn);
      const ended = this.#run(node.body, turn, out);
      hasWholeTurn ||= ended === 'normally';
      if (ended === 'break') break;
    }
    // jinja2 notes at the end of the body that a turn was made, so {% else %} also follows a loop that was left before.
    return hasWholeTurn ? 'normally' : this.#run(node.otherwise, new Scope(scope), out);
  }

  *#chosen({ target, test }: ForNode, items: readonly Value[], scope: Scope): Iterator<Value> {
    const what = `a loop over ${items.length} items`;
    for (const item of items) {
      this.#meter.spend(turnSteps, what);
      this.#meter.hold(turnBytes, what);
      if (test !== null) {
        const inside = new Scope(scope);
        this.#assign(target, item, inside);
        if (!isTrue(this.#value(test, inside))) continue;
      }
      yield item;
    }
  }

  #assign(target: Target, value: Value, scope: Scope): void {
    if (target.kind === 'name') return scope.set(target.name, value);
    if (target.kind === 'member') {
      const [of] = scope.find(target.of);
      if (!(of instanceof Members) || of.fields === null)
        throw new Error('cannot assign attribute on non-namespace object.');
      this.#meter.hold(valueBytes, 'a namespace');
      of.fields.set(target.name, value);
      return undefined;
    }
    const items = itemsOf(value, this.#meter, 'taking a value apart');
    if (items.length !== target.items.length)
      throw new Error(`expected ${target.items.length} values to take apart, got ${items.length}.`);
    for (const [i, each] of target.items.entries()) this.#assign(each, items[i]!, scope);
    return undefined;
  }

  #macro(node: MacroNode, scope: Scope): Callable {
    return new Callable(node.name, (given) =>
      this.#deeper(`the macro "${node.name}"`, () => this.#textOf(node.body, this.#argumentsOf(node, given, scope))),
    );
  }

  /** The scope of a macro's body, with its arguments. */
  #argumentsOf({ name, signature, takes }: MacroNode, { positional, named }: Arguments, around: Scope): Scope {
    const scope = new Scope(around);
    const { names, defaults } = signature;
    const rest = new Map<Key, Value>(named);
    const firstDefault = names.length - defaults.length;
    for (const [i, each] of names.entries()) {
      const value = i < positional.length ? positional[i] : named.get(each);
      rest.delete(each);
      if (value !== undefined) scope.set(each, value);
      else if (i >= firstDefault) scope.set(each, this.#value(defaults[i - firstDefault]!, scope));
      else scope.set(each, new Undefined(`parameter '${each}' was not provided.`));
    }
    if (takes.has('caller'))
      scope.set('caller', rest.has('caller') ? rest.get('caller')! : new Undefined('No caller defined.'));
    if (takes.has('caller')) rest.delete('caller');
    if (takes.has('kwargs')) scope.set('kwargs', new Dict(rest));
    else if (rest.size > 0)
      throw new Error(`macro '${name}' takes no keyword argument '${String([...rest.keys()][0])}'.`);
    if (takes.has('varargs')) scope.set('varargs', new List('tuple', positional.slice(names.length)));
    else if (positional.length > names.length)
      throw new Error(`macro '${name}' takes not more than ${names.length} argument(s).`);
    return scope;
  }

  /** The value of an expression. `text`: the block's output, for a filter on it. */
  #value(node: Expression, scope: Scope, text = ''): Value {
    return this.#deeper(`its next part (${node.kind})`, () => this.#evaluated(node, scope, text));
  }

  #evaluated(node: Expression, scope: Scope, text: string): Value {
    const meter = this.#meter;
    switch (node.kind) {
      case 'constant':
        return node.value;
      case 'name': {
        const [value, looks] = scope.find(node.name);
        meter.spend(Math.floor(looks / scopesOfStep), 'a name');
        return value;
      }
      case 'tuple':
      case 'list':
        meter.items(node.items.length, placeBytes, 'a list');
        return new List(
          node.kind,
          node.items.map((item) => this.#value(item, scope)),
        );
      case 'dict':
        return this.#dict(node.pairs, scope);
      case 'condition':
        if (isTrue(this.#value(node.test, scope))) return this.#value(node.value, scope);
        if (node.otherwise) return this.#value(node.otherwise, scope);
        return new Undefined('the inline if-expression evaluated to false and no else section was defined.');
      case 'and':
      case 'or': {
        const left = this.#value(node.left, scope);
        return isTrue(left) === (node.kind === 'or') ? left : this.#value(node.right, scope);
      }
      case 'not':
        return !isTrue(this.#value(node.of, scope));
      case 'negative':
        return negative(this.#value(node.of, scope));
      case 'positive':
        return positive(this.#value(node.of, scope));
      case 'compare':
        return this.#comparison(node, scope);
      case 'binary':
        return binary(node.operator, this.#value(node.left, scope), this.#value(node.right, scope), meter);
      case 'concat':
        return concatenated(
          node.items.map((item) => this.#value(item, scope)),
          meter,
        );
      default:
        return this.#access(node, scope, text);
    }
  }

  #access(
    node: Extract<Expression, { kind: 'attribute' | 'item' | 'slice' | 'call' | 'filter' | 'test' }>,
    scope: Scope,
    text: string,
  ): Value {
    const meter = this.#meter;
    switch (node.kind) {
      case 'attribute':
        return attributeOf(this.#value(node.of, scope), node.name, meter);
      case 'item':
        return itemOf(this.#value(node.of, scope), this.#value(node.key, scope), meter);
      case 'slice': {
        const of = this.#value(node.of, scope);
        const bounds = node.bounds.map((bound) => (bound === null ? null : this.#value(bound, scope)));
        return slice(of, bounds[2] === null ? bounds.slice(0, 2) : bounds, meter);
      }
      case 'call':
        return this.#call(node.callee, node.args, scope, null);
      case 'filter': {
        const of = node.of === null ? text : this.#value(node.of, scope, text);
        return filtered(node.name, of, this.#arguments(node.args, scope), meter);
      }
      case 'test':
        return test(node.name, this.#value(node.of, scope), this.#arguments(node.args, scope), meter);
      default:
        return node satisfies never;
    }
  }

  #dict(pairs: readonly (readonly [Expression, Expression])[], scope: Scope): Dict {
    this.#meter.items(pairs.length, valueBytes, 'a map');
    const entries = new Map<Key, Value>();
    for (const [key, value] of pairs) entries.set(keyOf(this.#value(key, scope)), this.#value(value, scope));
    return new Dict(entries);
  }

  #comparison({ first, rest }: Extract<Expression, { kind: 'compare' }>, scope: Scope): boolean {
    let left = this.#value(first, scope);
    for (const [operator, expression] of rest) {
      const right = this.#value(expression, scope);
      if (!compared(operator, left, right, this.#meter)) return false;
      left = right;
    }
    return true;
  }

  #call(callee: Expression, args: CallArguments, scope: Scope, caller: Callable | null): Value {
    const called = this.#value(callee, scope);
    const { positional, named } = this.#arguments(args, scope);
    if (called instanceof Undefined) throw new Error(called.message);
    const call = called instanceof Callable || called instanceof Members ? called.call : null;
    if (!call) throw new Error(`'${typeName(called)}' object is not callable.`);
    return call({ positional, named: caller ? new Map([...named, ['caller', caller]]) : named });
  }

  #arguments(args: CallArguments, scope: Scope): Arguments {
    const positional = args.positional.map((each) => this.#value(each, scope));
    const named = new Map<string, Value>();
    for (const [name, value] of args.named) named.set(name, this.#value(value, scope));
    if (args.spread) {
      const items = itemsOf(this.#value(args.spread, scope), this.#meter, 'arguments');
      this.#meter.items(items.length, evaluationBytes, 'arguments');
      for (const item of items) positional.push(item);
    }
    if (args.namedSpread) {
      const more = this.#value(args.namedSpread, scope);
      if (!(more instanceof Dict)) throw new Error(`** expects a map, got '${typeName(more)}'.`);
      this.#meter.items(sizeOf(more), evaluationBytes, 'arguments');
      for (const [name, value] of more.entries) named.set(String(name), value);
    }
    return { positional, named };
  }
}
