/** A prompt that was computed: what a row needs to continue it. */
export interface ComputedPrompt {
  /** Keys and values as KeyValueCache.readRow gives them. */
  readonly keysValues: Float32Array;
  /** Of the token after the prompt, [vocabulary]. */
  readonly logits: Float32Array;
}

/**
 * Prompts by version and tokens, the most recently used ones within a bound of bytes: rows of a group share their prompt
 * also when they arrive in different calls or must wait for room. Whole prompts only: see DecodeBatch about parts.
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

  /** Forgets the prompts of a version. */
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

function bytesOf({ keysValues, logits }: ComputedPrompt): number {
  return keysValues.byteLength + logits.byteLength;
}
