/** So many at once and no more; the others wait in turn. */
export class Gate {
  #free: number;
  readonly #waiting: (() => void)[] = [];

  constructor(atOnce: number) {
    this.#free = atOnce < 1 ? Infinity : atOnce;
  }

  /** The same for whoever names it in this process. */
  static shared(name: string, atOnce: number): Gate {
    const key = `${name}#${atOnce}`;
    const gate = shared.get(key)?.deref() ?? new Gate(atOnce);
    shared.set(key, new WeakRef(gate));
    return gate;
  }

  async through<T>(work: () => Promise<T>): Promise<T> {
    if (this.#free > 0) this.#free -= 1;
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
    try {
      return await work();
    } finally {
      const next = this.#waiting.shift();
      if (next === undefined) this.#free += 1;
      else next();
    }
  }
}

const shared = new Map<string, WeakRef<Gate>>();
