import { setTimeout as delay } from 'node:timers/promises';
import { sharePrompt, wholePrompt } from '../../core/rl/rollout/shared-prompts.ts';
import type { RecordedTurn } from '../../core/rl/rollout/rollout.ts';
import { damaged } from '../../store/objects.ts';
import type { Store } from '../../store/index.ts';
import { Part } from './part.ts';

/** A turn whose prompt begins as that of an earlier row. */
interface ContinuingTurn extends Omit<RecordedTurn, 'promptTokenIds'> {
  readonly promptTokenIds?: undefined;
  readonly prompt: {
    /** Number of the object that has that row; missing: this one. */
    readonly part?: number;
    readonly row: number;
    /** Ids in common with its prompt and what it sampled; then the rest. */
    readonly take: number;
    readonly rest: readonly number[];
  };
}

/** A row of `turns_N.jsonl`. */
export type StoredTurn = RecordedTurn | ContinuingTurn;

type OfRollout = Pick<RecordedTurn, 'group' | 'index'>;

/** Writes under way at once: with a slow store a call of a program waits for its own, not for the end of the one before. */
const writesMax = 4;
/** Rows that come while a write is as young as this wait for its end and share the next: with a quick store each write costs more than the wait. */
const youngMs = 3;

/** A turn, and where it is stored; null = it is not yet. */
interface KnownTurn {
  readonly turn: RecordedTurn;
  at: { readonly part: number; readonly row: number } | null;
}

/**
 * Finished turns of running rollouts in objects `PREFIX1.jsonl`, `PREFIX2.jsonl`, …, each token of a conversation once.
 * A row refers to another one by its object and line. Attempts that overlap write different objects, so a reference
 * means the same to every reader.
 */
export class TurnRows {
  /** With whole prompts, in the order in which they were stored. */
  readonly stored: readonly RecordedTurn[];
  fresh: RecordedTurn[] = [];
  readonly #part: Part<StoredTurn>;
  readonly #known = new Map<number, Map<number, KnownTurn[]>>();
  /** Rows that are being written, by their write. */
  readonly #underWay = new Map<Promise<void>, readonly RecordedTurn[]>();
  /** The write that has not begun: whoever has rows meanwhile shares it. */
  #next: Promise<void> | null = null;

  private constructor(part: Part<StoredTurn>, objects: ReadonlyMap<number, readonly StoredTurn[]>, prefix: string) {
    this.#part = part;
    const parts = [...objects].toSorted(([a], [b]) => a - b);
    this.stored = parts.flatMap(([number, rows]) =>
      rows.map((row, i) => {
        const turn = this.#whole(row, number, `${prefix}${number}.jsonl, line ${i + 1}`);
        this.#ofRollout(turn).push({ turn, at: { part: number, row: i } });
        return turn;
      }),
    );
  }

  static async open(store: Store, prefix: string, keys: readonly string[]): Promise<TurnRows> {
    const held = new Map<number, readonly StoredTurn[]>();
    return new TurnRows(await Part.open<StoredTurn>(store, prefix, { keys, held }), held, store.uri + prefix);
  }

  /** Rows that are not in the store yet, in their order. */
  get unstored(): readonly RecordedTurn[] {
    return [...[...this.#underWay.values()].flat(), ...this.fresh];
  }

  /** Returns when the rows that are fresh and those being written are stored; rejects if a write fails, whose rows stay fresh. */
  async flush(): Promise<void> {
    if (this.fresh.length > 0) this.#next ??= this.#writeNext();
    await Promise.all([...this.#underWay.keys(), this.#next]);
  }

  async #writeNext(): Promise<void> {
    await Promise.resolve(); // rows that come in one moment share a write
    const oneEnds = async (): Promise<void> => Promise.race(this.#underWay.keys()).catch(() => undefined);
    if (this.#underWay.size > 0) await Promise.race([oneEnds(), delay(youngMs)]);
    while (this.#underWay.size >= writesMax) await oneEnds();
    this.#next = null;
    const rows = this.fresh;
    if (rows.length === 0) return; // they are needed no more
    this.fresh = [];
    const write = this.#write(rows);
    this.#underWay.set(write, rows);
    try {
      await write;
    } catch (error) {
      this.fresh = [...rows, ...this.fresh];
      throw error;
    } finally {
      this.#underWay.delete(write);
    }
  }

  async #write(rows: readonly RecordedTurn[]): Promise<void> {
    const written: KnownTurn[] = [];
    const stored = rows.map((turn) => {
      const row = this.#sharing(turn, written);
      const known: KnownTurn = { turn, at: null };
      written.push(known);
      this.#ofRollout(turn).push(known);
      return row;
    });
    try {
      const part = await this.#part.put(stored);
      for (const [row, known] of written.entries()) known.at = { part, row };
    } catch (error) {
      for (const known of written) this.#forget(known); // the next flush writes them again
      throw error;
    }
  }

  /** The rollout has finished, or is stored elsewhere: no row refers to its turns any more. */
  drop({ group, index }: OfRollout): void {
    this.#known.get(group)?.delete(index);
  }

  /** No row refers to turns of this group any more. */
  release(group: number): void {
    this.#known.delete(group);
  }

  /** The row of a turn; `written` are the rows of the same object before it. */
  #sharing(turn: RecordedTurn, written: readonly KnownTurn[]): StoredTurn {
    // A row of another write that is under way has no place yet.
    const earlier = this.#ofRollout(turn).filter((known) => known.at !== null || written.includes(known));
    const prompt = sharePrompt(
      turn.promptTokenIds,
      earlier.map((known) => known.turn),
    );
    if (prompt === null) return turn;
    const { promptTokenIds: _, ...rest } = turn;
    const { as, ...ids } = prompt;
    const one = earlier[as]!;
    return { ...rest, prompt: { ...(one.at ?? { row: written.indexOf(one) }), ...ids } };
  }

  #whole(row: StoredTurn, part: number, where: string): RecordedTurn {
    if (row.promptTokenIds !== undefined) return row;
    const { prompt, ...rest } = row;
    const { part: of = part, row: line, ...ids } = prompt;
    const one = this.#ofRollout(row).find(({ at }) => at?.part === of && at.row === line);
    const promptTokenIds = one ? wholePrompt({ as: 0, ...ids }, [one.turn]) : null;
    if (promptTokenIds !== null) return { ...rest, promptTokenIds };
    const expected = `a prompt that begins as the turn in line ${line + 1} of turns_${of}.jsonl`;
    throw damaged(where, `expected ${expected}, found no such turn of this rollout`);
  }

  #ofRollout({ group, index }: OfRollout): KnownTurn[] {
    const members = this.#known.get(group) ?? new Map<number, KnownTurn[]>();
    const known = members.get(index) ?? [];
    this.#known.set(group, members.set(index, known));
    return known;
  }

  #forget(known: KnownTurn): void {
    const all = this.#ofRollout(known.turn);
    all.splice(all.indexOf(known), 1);
  }
}
