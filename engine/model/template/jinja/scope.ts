import { Undefined, type Value } from './values.ts';

/** Names and their values; a scope sees those of the scopes around it as they are when it looks. */
export class Scope {
  readonly #names = new Map<string, Value>();
  readonly #around: Scope | null;

  constructor(around: Scope | null) {
    this.#around = around;
  }

  set(name: string, value: Value): void {
    this.#names.set(name, value);
  }

  /** Returns the value, and in how many scopes it was looked for. */
  find(name: string): readonly [value: Value, looks: number] {
    const own = this.#names.get(name);
    if (own !== undefined) return [own, 1];
    let looks = 2;
    for (let scope = this.#around; scope; scope = scope.#around) {
      const found = scope.#names.get(name);
      if (found !== undefined) return [found, looks];
      looks++;
    }
    return [new Undefined(`'${name}' is not defined.`), looks];
  }
}
