/** What is waited for at a server elsewhere, for whoever asks why nothing happens. */
export class Waits {
  readonly #open = new Map<object, string>();

  /** What has been waited for longest, in words; null where nothing is. */
  get longest(): string | null {
    return this.#open.values().next().value ?? null;
  }

  /** `owner` is a piece of work, which waits for one thing at a time. */
  begin(owner: object, what: string): void {
    this.#open.set(owner, what);
  }

  end(owner: object): void {
    this.#open.delete(owner);
  }
}
