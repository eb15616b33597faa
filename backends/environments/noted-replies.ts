import { createHash } from 'node:crypto';
import type { JsonValue } from '../../core/json-value.ts';
import type { RolloutNotes } from '../../core/rl/rollout/notes.ts';
import type { Example, Turn } from '../../core/rl/rollout/rollout.ts';
import type { MultiTurnOptions, Reply } from './shapes.ts';

const kind = 'reply';

/**
 * Replies of an environment that says its state. Each is written down with the state after it; a reply that an earlier
 * attempt wrote down to the same turn is given again.
 */
export class NotedReplies<State> {
  readonly #notes: RolloutNotes | undefined;
  readonly #known: ReadonlyMap<string, JsonValue>;
  readonly #snapshot: NonNullable<MultiTurnOptions<State>['snapshot']> | undefined;
  readonly #restore: (snapshot: JsonValue) => State;

  private constructor(
    { snapshot, restore }: Pick<MultiTurnOptions<State>, 'snapshot' | 'restore'>,
    example: Example,
    notes: RolloutNotes | undefined,
    known: ReadonlyMap<string, JsonValue>,
  ) {
    this.#notes = notes;
    this.#known = known;
    this.#snapshot = snapshot;
    this.#restore = (said) => restore!(said, example);
  }

  static async open<State>(
    options: Pick<MultiTurnOptions<State>, 'snapshot' | 'restore'>,
    example: Example,
    notes: RolloutNotes | undefined,
  ): Promise<NotedReplies<State>> {
    const used = options.snapshot === undefined ? undefined : notes;
    return new NotedReplies(options, example, used, (await used?.all(kind)) ?? new Map());
  }

  /** `count`: number of turns so far, this one included. */
  async to(
    { text, toolCalls = [] }: Pick<Turn, 'text' | 'toolCalls'>,
    count: number,
    respond: () => Reply<State> | Promise<Reply<State>>,
  ): Promise<Reply<State>> {
    if (this.#notes === undefined || this.#snapshot === undefined) return respond();
    const key = `${count}:${createHash('sha256')
      .update(JSON.stringify([text, toolCalls]))
      .digest('hex')
      .slice(0, 16)}`;
    const known = this.#known.get(key);
    if (known !== undefined) return this.#read(known);
    const reply = await respond();
    const { state, ...said } = reply;
    await this.#notes.put(kind, key, { ...(said as { [name: string]: JsonValue }), state: this.#snapshot(state) });
    return reply;
  }

  #read(noted: JsonValue): Reply<State> {
    const { state, ...said } = noted as { readonly state: JsonValue };
    return { ...(said as Reply<State>), state: this.#restore(state) };
  }
}
