/** Open waits for a remote server, for status displays. */
export class Waits {
  readonly #open = new Map<object, string>();

  /** The longest wait, in words; null without any. */
  get longest(): string | null {
    return this.#open.values().next().value ?? null;
  }

  /** `owner` is a piece of work that waits for one thing at a time. */
  begin(owner: object, what: string): void {
    this.#open.set(owner, what);
  }

  end(owner: object): void {
    this.#open.delete(owner);
  }
}
