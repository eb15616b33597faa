import type { TemplateMeter } from '../template-meter.ts';
import { equal, type List, Callable, Members, tupleOf, Undefined, type Value } from './values.ts';

/**
 * `loop` of a template: the position within a loop. Items are read one by one, since a condition may change meanwhile.
 */
export class Loop {
  readonly #items: Iterator<Value>;
  readonly #ahead: Value[] = [];
  #index = -1;
  #before: Value | undefined;
  #current: Value | undefined;
  #changed: List | null = null;
  readonly value: Members;

  constructor(
    items: Iterator<Value>,
    {
      depth,
      again,
      meter,
    }: { readonly depth: number; readonly again: ((over: Value) => Value) | null; readonly meter: TemplateMeter },
  ) {
    this.#items = items;
    const call = again && (({ positional }: { readonly positional: readonly Value[] }) => again(positional[0] ?? null));
    this.value = new Members('LoopContext', { member: (name) => this.#member(name, depth, meter), call });
  }

  /** Goes to the next item; undefined at the end. */
  next(): Value | undefined {
    const found = this.#ahead.length > 0 ? this.#ahead.shift() : this.#take();
    if (found === undefined) return undefined;
    this.#index++;
    this.#before = this.#current;
    this.#current = found;
    return found;
  }

  #take(): Value | undefined {
    const { done, value } = this.#items.next();
    return done ? undefined : value;
  }

  #peek(): Value | undefined {
    if (this.#ahead.length === 0) {
      const found = this.#take();
      if (found !== undefined) this.#ahead.push(found);
    }
    return this.#ahead[0];
  }

  get #length(): number {
    for (let found = this.#take(); found !== undefined; found = this.#take()) this.#ahead.push(found);
    return this.#index + 1 + this.#ahead.length;
  }

  #member(name: string, depth: number, meter: TemplateMeter): Value | undefined {
    switch (name) {
      case 'index':
        return this.#index + 1;
      case 'index0':
        return this.#index;
      case 'first':
        return this.#index === 0;
      case 'last':
        return this.#peek() === undefined;
      case 'length':
        return this.#length;
      case 'revindex':
        return this.#length - this.#index;
      case 'revindex0':
        return this.#length - this.#index - 1;
      case 'previtem':
        return present(this.#before, 'there is no previous item.');
      case 'nextitem':
        return present(this.#peek(), 'there is no next item.');
      case 'depth':
        return depth;
      case 'depth0':
        return depth - 1;
      case 'cycle':
        return new Callable('cycle', ({ positional }) => {
          if (positional.length === 0) throw new Error('no items for cycling given.');
          return positional[this.#index % positional.length]!;
        });
      case 'changed':
        return new Callable('changed', ({ positional }) => {
          const now = tupleOf(...positional);
          if (this.#changed && equal(this.#changed, now, meter)) return false;
          this.#changed = now;
          return true;
        });
      default:
        return undefined;
    }
  }
}

function present(item: Value | undefined, otherwise: string): Value {
  return item === undefined ? new Undefined(otherwise) : item;
}
