import { createHash } from 'node:crypto';
import type { CallConstraints } from '../../backends/environments/types.ts';
import type { Turn } from '../../core/rl/rollout/rollout.ts';

/** Turns that earlier attempts of a rollout finished, each returned at most once in place of a new one. */
export class RecalledTurns {
  /** Calls of a program that owns its loop; it may ask for them in another order. */
  readonly calls: readonly Turn[];
  readonly #inOrder: readonly Turn[];
  readonly #unasked = new Map<string, Turn[]>();
  /** Ids of calls that are stored or asked for. */
  readonly #ids = new Set<string>();
  #isOnRecord = true;

  constructor(recorded: readonly Turn[]) {
    this.#inOrder = recorded.filter(({ call }) => call === undefined);
    // Attempts that overlapped may both have answered a call.
    this.calls = [...new Map(recorded.flatMap((turn) => (turn.call ? [[turn.call.id, turn]] : []))).values()];
    for (const turn of this.calls) {
      const { id } = turn.call!;
      const name = promptOf(id);
      this.#ids.add(id);
      this.#unasked.set(name, [...(this.#unasked.get(name) ?? []), turn]);
    }
  }

  /** The turn at this position of an environment that asks for one after the other, as long as all prompts agree. */
  at(position: number, promptTokenIds: readonly number[]): Turn | undefined {
    const known = this.#inOrder[position];
    this.#isOnRecord &&= known !== undefined && isSame(known.promptTokenIds, promptTokenIds);
    return this.#isOnRecord ? known : undefined;
  }

  /** A stored turn of this prompt that nobody asked for yet; else the id of a new one. */
  call(prompt: string): Turn | { readonly id: string } {
    const known = this.#unasked.get(prompt)?.shift();
    if (known !== undefined) return known;
    for (let n = 0; ; n++) {
      const id = `${prompt}-${n}`;
      if (this.#ids.has(id)) continue;
      this.#ids.add(id);
      return { id };
    }
  }

  /** Takes a call that will not be asked for again; undefined if there is none of the id. */
  take(id: string): Turn | undefined {
    const unasked = this.#unasked.get(promptOf(id)) ?? [];
    const at = unasked.findIndex(({ call }) => call!.id === id);
    return at < 0 ? undefined : unasked.splice(at, 1)[0];
  }

  /** A new turn failed, so another attempt at its call may have its id. */
  release(id: string): void {
    this.#ids.delete(id);
  }
}

/** Name of a prompt in the ids of its calls; calls that demand something else of their answer have another. */
export function promptName(content: readonly number[] | string, constraints?: CallConstraints): string {
  const bytes = typeof content === 'string' ? content : new Uint8Array(Int32Array.from(content).buffer);
  const hash = createHash('sha256').update(bytes);
  if (constraints !== undefined) hash.update(JSON.stringify(constraints));
  return hash.digest('hex').slice(0, 16);
}

function promptOf(id: string): string {
  return id.slice(0, id.lastIndexOf('-'));
}

function isSame(a: readonly number[], b: readonly number[]): boolean {
  return a.length === b.length && a.every((token, i) => token === b[i]);
}
