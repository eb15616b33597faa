/** A computed prompt: everything that a row needs to continue it. */
export interface ComputedPrompt {
  readonly tokenIds: readonly number[];
  /** Keys and values as KeyValueCache.readRow gives them. */
  readonly keysValues: Float32Array;
  /** Logits of the token after the prompt, [vocabulary]. */
  readonly logits: Float32Array;
}

/**
 * Prompts by version and tokens, the most recently used ones within a bound of bytes: rows of a group share their prompt
 * also when they arrive in different calls or must wait for room, and a prompt takes its beginning from one before it, as
 * the next turn of a conversation does.
 */
export class PromptCache {
  readonly #bytesMax: number;
  /** In the order of their use, the latest last. */
  readonly #prompts = new Map<string, ComputedPrompt>();
  #bytes = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  get bytes(): number {
    return this.#bytes;
  }

  get(key: string): ComputedPrompt | undefined {
    const prompt = this.#prompts.get(key);
    if (!prompt) return undefined;
    this.#prompts.delete(key);
    this.#prompts.set(key, prompt);
    return prompt;
  }

  /** The version's cached prompt with the longest common beginning. */
  nearest(prefix: string, tokenIds: readonly number[]): { prompt: ComputedPrompt; sharedCount: number } | null {
    let nearest: { prompt: ComputedPrompt; sharedCount: number } | null = null;
    for (const [key, prompt] of this.#prompts) {
      if (!key.startsWith(prefix)) continue;
      const sharedCount = countShared(prompt.tokenIds, tokenIds);
      if (sharedCount > (nearest?.sharedCount ?? 0)) nearest = { prompt, sharedCount };
    }
    return nearest;
  }

  set(key: string, prompt: ComputedPrompt): void {
    this.#delete(key);
    if (bytesOf(prompt) > this.#bytesMax) return;
    this.#prompts.set(key, prompt);
    this.#bytes += bytesOf(prompt);
    for (const oldest of this.#prompts.keys()) {
      if (this.#bytes <= this.#bytesMax) break;
      this.#delete(oldest);
    }
  }

  drop(prefix: string): void {
    for (const key of this.#prompts.keys()) if (key.startsWith(prefix)) this.#delete(key);
  }

  #delete(key: string): void {
    const prompt = this.#prompts.get(key);
    if (!prompt) return;
    this.#prompts.delete(key);
    this.#bytes -= bytesOf(prompt);
  }
}

/**
 * Memory of prompts that were computed together: small ones share a piece, which is freed with the last of them, as making
 * and freeing each by itself takes longer than filling it.
 */
export class PromptMemory {
  #piece = new Float32Array(0);
  #used = 0;

  take(count: number): Float32Array {
    if (count > pieceFloats / 4) return new Float32Array(count);
    if (this.#used + count > this.#piece.length) {
      this.#piece = new Float32Array(pieceFloats);
      this.#used = 0;
    }
    this.#used += count;
    return this.#piece.subarray(this.#used - count, this.#used);
  }
}

/** 32 KiB: a prompt that outlives the others of its piece keeps no more than that. */
const pieceFloats = 8192;

function countShared(a: readonly number[], b: readonly number[]): number {
  let count = 0;
  while (count < a.length && count < b.length && a[count] === b[count]) count++;
  return count;
}

/** The key and the ids are about eight bytes a token each. */
function bytesOf({ tokenIds, keysValues, logits }: ComputedPrompt): number {
  return keysValues.byteLength + logits.byteLength + 16 * tokenIds.length;
}
