import { failpoint } from '../../store/failpoints.ts';
import type { RowPlace } from '../../core/rl/rollout/in-play.ts';
import type { RecordedTurn, Rollout, Turn } from '../../core/rl/rollout/rollout.ts';
import type { Store } from '../../store/index.ts';
import { NotesLog } from './notes.ts';
import { Part } from './part.ts';
import { TurnRows } from './turn-rows.ts';
import { untilStored } from './until-stored.ts';

type Place = Pick<Rollout, 'group' | 'index'>;

/**
 * Journals of attempts that could not store everything. The oldest are dropped first; their chunks were finished
 * elsewhere.
 */
const keptMax = 32;
const kept = new Map<string, RolloutJournal>();

interface JournalOptions {
  /** Prefix of the notes of its rollouts; missing = it has none. */
  readonly notes?: string;
  /** See {@link NotesLogOptions}. */
  readonly removedFirst?: string | undefined;
  /** Ends the patience with a store that is away. */
  readonly signal?: AbortSignal;
}

/**
 * Finished rollouts of a chunk, and finished turns of running ones, stored in parts while the chunk is under way. A
 * part holds what finished since the previous one, so the number of parts depends on time and not on amount. If
 * overlapping attempts both store a rollout, it counts once. Rows that an attempt could not store, because the store
 * was away or full, go to the next attempt in this process.
 */
export class RolloutJournal {
  readonly #rollouts: Part<Rollout>;
  readonly #turns: TurnRows;
  readonly #finished = new Places<Rollout>();
  readonly #unfinished = new Places<Turn[]>();
  /** Groups whose fresh rows are not to be stored. */
  readonly #released = new Set<number>();
  readonly #key: string;
  /** Whether an earlier attempt had stored something. */
  readonly wasBegun: boolean;
  #writing: Promise<void> | null = null;
  #notes: NotesLog | null = null;

  private constructor(key: string, rollouts: Part<Rollout>, turns: TurnRows, wasBegun: boolean) {
    this.#key = key;
    this.wasBegun = wasBegun;
    this.#rollouts = rollouts;
    this.#turns = turns;
    for (const recorded of turns.stored) this.#remember(recorded);
    this.adopt(rollouts.stored);
  }

  /** `leases` = their sha256, which ensures that an earlier attempt's rollouts are the same. */
  static async open(
    store: Store,
    prefix: string,
    leases: string,
    { notes, removedFirst, signal = new AbortController().signal }: JournalOptions = {},
  ): Promise<RolloutJournal> {
    const keys = await store.list(prefix);
    const key = `${store.uri}${prefix}#${leases}`;
    const journal = new RolloutJournal(
      key,
      await Part.open<Rollout>(store, `${prefix}part_`, { keys }),
      await TurnRows.open(store, `${prefix}turns_`, keys),
      keys.length > 0,
    );
    const before = kept.get(key);
    if (before) journal.#takeOver(before);
    if (notes !== undefined) {
      journal.#notes = await NotesLog.open(store, notes, {
        signal,
        before: () => journal.settle(signal),
        removedFirst,
        ...(notes.startsWith(prefix) ? { keys } : {}),
      });
    }
    return journal;
  }

  /** Keeps unstored rows for the next attempt in this process, should this attempt end early. */
  keep(): void {
    kept.delete(this.#key);
    kept.set(this.#key, this);
    if (kept.size > keptMax) kept.delete(kept.keys().next().value!);
  }

  /** Everything is in the store. */
  forget(): void {
    kept.delete(this.#key);
  }

  /** What its rollouts write down beside their turns. */
  get notes(): NotesLog {
    if (this.#notes === null) throw new Error(`${this.#key} was opened without notes`);
    return this.#notes;
  }

  has(place: Place): boolean {
    return this.#finished.get(place) !== undefined;
  }

  /**
   * The finished turns of a rollout that is not finished, in order. Calls of all attempts, set aside or not, in the order
   * in which they were stored.
   */
  turnsOf(place: Place): readonly Turn[] {
    return [...(this.#unfinished.get(place) ?? [])];
  }

  /** Where the newest stored turn of a running rollout is; null if none is. */
  newestTurnOf(place: Place): RowPlace | null {
    return this.#turns.newestOf(place);
  }

  /** Takes up rollouts that are stored elsewhere. */
  adopt(rollouts: readonly Rollout[]): void {
    for (const rollout of rollouts) {
      this.#finished.set(rollout, rollout);
      this.#unfinished.delete(rollout);
      this.#turns.drop(rollout);
    }
  }

  add(rollout: Rollout): void {
    this.adopt([rollout]);
    this.#rollouts.fresh.push(rollout);
  }

  /** Rollouts and sampled tokens in it, of unfinished rollouts the tokens of their finished turns. */
  size(): { readonly rollouts: number; readonly tokens: number } {
    const finished = this.#finished.all();
    const turns = finished.flatMap((rollout) => rollout.turns);
    const tokens = [...turns, ...this.#unfinished.all().flat()].reduce((n, turn) => n + turn.tokenIds.length, 0);
    return { rollouts: finished.length, tokens };
  }

  /** A turn that replaces another makes all later turns void; a call replaces none. */
  addTurn(recorded: RecordedTurn): void {
    this.#remember(recorded);
    this.#turns.fresh.push(recorded);
  }

  /**
   * Stores what finished since the last part, unless a write is under way. Rows that could not be stored stay for the
   * next one.
   */
  async flush(): Promise<void> {
    this.#writing ??= this.#write().finally(() => (this.#writing = null));
    await this.#writing;
    await failpoint('generate.part');
  }

  /**
   * Returns when everything that was added before is in the store. Waits while the store is away or full: what waits for
   * this must not go on without it. Some parts with turns are written at once; rows that come meanwhile share the next one.
   */
  async settle(signal: AbortSignal): Promise<void> {
    await untilStored(() => Promise.all([this.#flushTurns(), this.#flushRollouts()]), signal);
    await failpoint('generate.part');
  }

  /** Stores the rest, unless everything finished at once: then the chunk's own object follows right away. */
  async close(expected: number): Promise<void> {
    await this.#writing?.catch(() => undefined); // repeated below
    this.#dropReleased();
    if (this.#rollouts.fresh.length < expected) await this.flush();
  }

  async #write(): Promise<void> {
    this.#dropReleased();
    await this.#rollouts.flush();
    await this.#flushTurns();
  }

  async #flushTurns(): Promise<void> {
    this.#dropReleased();
    // Turns of a rollout that has finished meanwhile are in the rollout.
    this.#turns.fresh = this.#turns.fresh.filter((recorded) => !this.has(recorded));
    await this.#turns.flush();
  }

  async #flushRollouts(): Promise<void> {
    if (this.#rollouts.fresh.length === 0) return;
    await this.#writing?.catch(() => undefined); // its rows are written again
    await this.flush();
  }

  /** The finished rollouts of one group. */
  of(group: number): Rollout[] {
    return this.#finished.of(group);
  }

  /** Drops a group that is stored elsewhere by now. Its fresh rows go with the next write: a chunk may have thousands of groups. */
  release(group: number): void {
    this.#finished.release(group);
    this.#unfinished.release(group);
    this.#turns.release(group);
    this.#released.add(group);
  }

  #dropReleased(): void {
    const isKept = (row: { readonly group: number }): boolean => !this.#released.has(row.group);
    this.#rollouts.fresh = this.#rollouts.fresh.filter(isKept);
    this.#turns.fresh = this.#turns.fresh.filter(isKept);
    this.#released.clear();
  }

  inOrder(): Rollout[] {
    return this.#finished.all().sort((a, b) => a.group - b.group || a.index - b.index);
  }

  #takeOver(before: RolloutJournal): void {
    before.#dropReleased();
    for (const rollout of before.#rollouts.fresh) if (!this.has(rollout)) this.add(rollout);
    for (const recorded of before.#turns.unstored) if (!this.has(recorded)) this.addTurn(recorded);
  }

  #remember(recorded: RecordedTurn): void {
    const { group, index, turn: position, seconds: _, ...turn } = recorded;
    const place = { group, index };
    if (this.has(place)) return;
    const turns = this.#unfinished.get(place) ?? [];
    if (turn.call !== undefined) turns.push(turn);
    else if (position > turns.length) return; // the turn before it was never stored
    else turns.splice(position, Infinity, turn);
    this.#unfinished.set(place, turns);
  }
}

/** A value for each rollout, found by its group: a chunk may have thousands. */
class Places<Value> {
  readonly #groups = new Map<number, Map<number, Value>>();

  get({ group, index }: Place): Value | undefined {
    return this.#groups.get(group)?.get(index);
  }

  set({ group, index }: Place, value: Value): void {
    const members = this.#groups.get(group) ?? new Map<number, Value>();
    this.#groups.set(group, members.set(index, value));
  }

  delete({ group, index }: Place): void {
    this.#groups.get(group)?.delete(index);
  }

  release(group: number): void {
    this.#groups.delete(group);
  }

  of(group: number): Value[] {
    return [...(this.#groups.get(group)?.values() ?? [])];
  }

  all(): Value[] {
    return [...this.#groups.values()].flatMap((members) => [...members.values()]);
  }
}
