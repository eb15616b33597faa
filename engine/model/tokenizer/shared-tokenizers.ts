import { createHash } from 'node:crypto';
import type { ChatTokenizer } from './tokenizer.ts';

/** Tokenizers keyed by their content, as long as they are in use: one of 49,000 tokens takes 17 MB. */
export class SharedTokenizers {
  readonly #known = new Map<string, WeakRef<ChatTokenizer>>();

  /** The existing one with the same content, or a new one. */
  of(parts: readonly (string | null | undefined)[], make: () => ChatTokenizer): ChatTokenizer {
    const key = createHash('sha256').update(JSON.stringify(parts)).digest('hex');
    const known = this.#known.get(key)?.deref();
    if (known) return known;
    const made = make();
    for (const [other, tokenizer] of this.#known) if (!tokenizer.deref()) this.#known.delete(other);
    this.#known.set(key, new WeakRef(made));
    return made;
  }
}
