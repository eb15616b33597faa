import { setTimeout as delay } from 'node:timers/promises';
import { sharePrompt, wholePrompt } from '../../core/rl/rollout/shared-prompts.ts';
import type { RowPlace } from '../../core/rl/rollout/in-play.ts';
import type { RecordedTurn } from '../../core/rl/rollout/rollout.ts';
import { damaged } from '../../store/objects.ts';
import type { Store } from '../../store/index.ts';
import { nameOf } from './notes.ts';
import { Part } from './part.ts';

/** `part` is missing in a reference to the same object. */
type RowReference = Pick<RowPlace, 'row'> & Partial<RowPlace>;

interface Linked {
  /** The rollout's row before this one: who looks at one rollout reads no other's. Missing in its first row. */
  readonly before?: RowReference;
}

/** A turn whose prompt begins as that of an earlier row. */
interface ContinuingTurn extends Omit<RecordedTurn, 'promptTokenIds'>, Linked {
  readonly promptTokenIds?: undefined;
  readonly prompt: RowReference & {
    /** Ids in common with its prompt and what it sampled; then the rest. */
    readonly take: number;
    readonly rest: readonly number[];
  };
}

/** A row of `turns_N.jsonl`. */
export type StoredTurn = (RecordedTurn & Linked) | ContinuingTurn;

type OfRollout = Pick<RecordedTurn, 'group' | 'index'>;

/** Writes under way at once: with a slow store a call of a program waits for its own, not for the end of the one before. */
const writesMax = 4;
/** Rows that come while a write is as young as this wait for its end and share the next: with a quick store each write costs more than the wait. */
const youngMs = 3;

/** A turn, and where it is stored; null = it is not yet. */
interface KnownTurn {
  readonly turn: RecordedTurn;
  at: RowPlace | null;
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
    while (this.#underWay.size >= writesMax || this.#areAllBehind()) await oneEnds();
    this.#next = null;
    const busy = this.#busy();
    const rows = this.fresh.filter((row) => !busy.has(nameOf(row)));
    if (rows.length === 0) return; // they are needed no more
    this.fresh = this.fresh.filter((row) => busy.has(nameOf(row)));
    const write: Promise<void> = this.#write(rows)
      .catch((error: unknown) => {
        this.fresh = [...rows, ...this.fresh];
        throw error;
      })
      .finally(() => this.#underWay.delete(write));
    this.#underWay.set(write, rows);
    // Who waits for this one waits for the rows that could not be in it.
    const later = this.fresh.length > 0 ? (this.#next ??= this.#writeNext()) : undefined;
    await Promise.all([write, later]);
  }

  /** Rollouts with a row under way. A row says where the one before it is, so the next one waits for that. */
  #busy(): ReadonlySet<string> {
    return new Set([...this.#underWay.values()].flatMap((rows) => rows.map(nameOf)));
  }

  #areAllBehind(): boolean {
    const busy = this.#busy();
    return this.fresh.length > 0 && this.fresh.every((row) => busy.has(nameOf(row)));
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

  /** Where the newest stored turn of a rollout is; null if none is. */
  newestOf(place: OfRollout): RowPlace | null {
    return this.#ofRollout(place).findLast(({ at }) => at !== null)?.at ?? null;
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
    const earlier = this.#ofRollout(turn);
    const to = (one: KnownTurn): RowReference => one.at ?? { row: written.indexOf(one) };
    const newest = earlier.at(-1);
    const linked: Linked = newest ? { before: to(newest) } : {};
    const prompt = sharePrompt(
      turn.promptTokenIds,
      earlier.map((known) => known.turn),
    );
    if (prompt === null) return { ...turn, ...linked };
    const { promptTokenIds: _, ...rest } = turn;
    const { as, ...ids } = prompt;
    return { ...rest, ...linked, prompt: { ...to(earlier[as]!), ...ids } };
  }

  #whole(stored: StoredTurn, part: number, where: string): RecordedTurn {
    const { before: _, ...row } = stored;
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
