import { createHash, randomUUID } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { RatchetError } from '../../core/errors.ts';
import type { JsonValue } from '../../core/json-value.ts';
import { noteBytesMax, notesOfRolloutBytesMax, notesOfRolloutMax } from '../../core/limits.ts';
import type { NotesPart, RolloutNotes, StoredNote } from '../../core/rl/rollout/notes.ts';
import type { Rollout } from '../../core/rl/rollout/rollout.ts';
import type { Store } from '../../store/index.ts';
import type { Shape } from '../../store/objects.ts';
import { decodeStored, encodeStored } from '../forms/stored-forms.ts';
import { untilStored } from './until-stored.ts';

type Place = Pick<Rollout, 'group' | 'index'>;

/** Milliseconds for which notes are gathered into one write; while one is written, further ones are gathered. */
const gatherMs = 2;
const readsAtOnce = 32;

/** The notes of one rollout, for who plays it. */
export interface NotesView extends RolloutNotes {
  /** False where nothing is written down for the rollout, by this attempt or an earlier one; true where there may be. */
  mayHaveAny(): boolean;
  /** The failure of whatever it puts, once another attempt has taken the rollout over. */
  takenOver(): RatchetError | null;
}

interface Held {
  readonly value: JsonValue;
  /** Ends when it is durable. */
  readonly stored: Promise<void> | null;
}

interface NotesOfRollout {
  readonly kinds: Map<string, Map<string, Held>>;
  count: number;
  bytes: number;
  /** Number of the newest object that has some of them; null before the first is stored. */
  newest: number | null;
}

/**
 * The notes of the rollouts of a chunk, in objects `PREFIX1.json`, `PREFIX2.json`, … without a gap. Each is written only
 * if it is absent, so their order is that of all writers together. An attempt first claims the log with an object of its
 * own, and then knows all that was written before. An earlier attempt that is still at work finds this object where its
 * next one would be: from the claim on it can write nothing down, and so begin and settle nothing.
 */
export class NotesLog {
  readonly #store: Store;
  readonly #prefix: string;
  readonly #signal: AbortSignal;
  /** Makes the finished turns durable: a note may tell what came of them. */
  readonly #before: (places: readonly Place[]) => Promise<unknown>;
  readonly #removedFirst: string | undefined;
  readonly #attempt = randomUUID();
  readonly #rollouts = new Map<string, NotesOfRollout>();
  /** Attempts that wrote something before this log was opened. */
  readonly #earlier = new Set<string>();
  /** Number of the newest object when this was opened; later the newest known. */
  #newest: number;
  #first: string | null = null;
  #claiming: Promise<void> | null = null;
  #takenOver: RatchetError | null = null;
  #fresh: StoredNote[] = [];
  #gathering: Promise<void> | null = null;
  #writing: Promise<void> = Promise.resolve();

  private constructor(store: Store, prefix: string, newest: number, { signal, before, removedFirst }: NotesLogOptions) {
    this.#store = store;
    this.#prefix = prefix;
    this.#newest = newest;
    this.#signal = signal;
    this.#before = before;
    this.#removedFirst = removedFirst;
  }

  /** Claims the log if earlier attempts wrote something into it, else with the first note. */
  static async open(store: Store, prefix: string, options: NotesLogOptions): Promise<NotesLog> {
    const keys = options.keys ?? (await store.list(prefix));
    const log = new NotesLog(store, prefix, numberOfNewest(keys, prefix), options);
    if (log.#newest > 0) await log.#claimed();
    return log;
  }

  of(place: Place): NotesView {
    return new NotesOfPlace(this, place);
  }

  /** Random: tells this attempt's notes from those of earlier ones. */
  get attempt(): string {
    return this.#attempt;
  }

  /** Where the newest notes of a rollout are; null if none are stored. */
  newestOf(place: Place): number | null {
    return this.#rollouts.get(nameOf(place))?.newest ?? null;
  }

  /** Values of a kind, those included that are being stored. */
  held(place: Place, kind: string): ReadonlyMap<string, JsonValue> {
    const held = this.#rollouts.get(nameOf(place))?.kinds.get(kind) ?? new Map<string, Held>();
    return new Map([...held].map(([key, { value }]) => [key, value]));
  }

  /** Forgets the notes of a rollout that is stored. */
  release(place: Place): void {
    this.#rollouts.delete(nameOf(place));
  }

  async put(place: Place, { kind, key, value }: Pick<StoredNote, 'kind' | 'key' | 'value'>): Promise<JsonValue> {
    await this.#claimed();
    if (this.#takenOver) throw this.#takenOver;
    const known = this.#rollouts.get(nameOf(place))?.kinds.get(kind)?.get(key);
    if (known) {
      await known.stored;
      return known.value;
    }
    const note = { ...place, kind, key, value };
    this.#require(note);
    this.#fresh.push(note);
    this.#gathering ??= this.#gather();
    const stored = this.#gathering;
    this.#hold(note, stored);
    await stored;
    return value;
  }

  #require({ kind, key, value, ...place }: StoredNote): void {
    const bytes = sizeOf(value);
    if (bytes > noteBytesMax) {
      throw new RangeError(`The note ${kind} ${key} has ${bytes} bytes; a note has at most ${noteBytesMax}.`);
    }
    const { count = 0, bytes: before = 0 } = this.#rollouts.get(nameOf(place)) ?? {};
    if (count < notesOfRolloutMax && before + bytes <= notesOfRolloutBytesMax) return;
    throw new RangeError(
      `The rollout has ${count} notes of ${before} bytes, and ${kind} ${key} would be one more; it may have ${notesOfRolloutMax} of ${notesOfRolloutBytesMax} bytes.`,
    );
  }

  /** The first value of a key stands. */
  #hold({ kind, key, value, ...place }: StoredNote, stored: Promise<void> | null): void {
    const name = nameOf(place);
    const rollout = this.#rollouts.get(name) ?? {
      kinds: new Map<string, Map<string, Held>>(),
      count: 0,
      bytes: 0,
      newest: null,
    };
    const values = rollout.kinds.get(kind) ?? new Map<string, Held>();
    this.#rollouts.set(name, rollout);
    rollout.kinds.set(kind, values);
    if (values.has(key)) return;
    values.set(key, { value, stored });
    rollout.count += 1;
    rollout.bytes += sizeOf(value);
  }

  /** One object at a time, since each follows the one before; what comes meanwhile is in the next. */
  async #gather(): Promise<void> {
    const written = this.#writing;
    await delay(gatherMs);
    await written.catch(() => undefined); // those who put it know
    const notes = this.#fresh;
    this.#fresh = [];
    this.#gathering = null;
    this.#writing = this.#write(notes);
    await this.#writing;
  }

  async #write(notes: readonly StoredNote[]): Promise<void> {
    if (this.#takenOver) throw this.#takenOver;
    await untilStored(() => this.#before(notes), this.#signal);
    const other = await this.#append(this.#linked(notes));
    if (other !== null) throw this.#isTakenOver();
    this.#areIn(this.#newest, notes);
  }

  /** The first note of each rollout says where those before it are. */
  #linked(notes: readonly StoredNote[]): StoredNote[] {
    const linked = new Set<string>();
    return notes.map((note) => {
      const name = nameOf(note);
      const before = linked.has(name) ? null : (this.#rollouts.get(name)?.newest ?? null);
      linked.add(name);
      return before === null ? note : { ...note, before };
    });
  }

  #areIn(part: number, notes: readonly StoredNote[]): void {
    for (const note of notes) {
      const of = this.#rollouts.get(nameOf(note));
      if (of) of.newest = part;
    }
  }

  #claimed(): Promise<void> {
    this.#claiming ??= this.#claim().catch((error: unknown) => {
      if (this.#takenOver === null) this.#claiming = null; // the store was away
      throw error;
    });
    return this.#claiming;
  }

  async get(place: Place, kind: string, key: string): Promise<JsonValue | undefined> {
    await this.#claimed();
    const held = this.#rollouts.get(nameOf(place))?.kinds.get(kind)?.get(key);
    await held?.stored;
    return held?.value;
  }

  async all(place: Place, kind: string): Promise<Map<string, JsonValue>> {
    await this.#claimed();
    const held = [...(this.#rollouts.get(nameOf(place))?.kinds.get(kind) ?? [])];
    for (const [, { stored }] of held) await stored;
    return new Map(held.map(([key, { value }]) => [key, value]));
  }

  async uniqueKey(place: Place, key: string): Promise<string> {
    await this.#claimed();
    return createHash('sha256')
      .update(JSON.stringify([this.#first, nameOf(place), key]))
      .digest('hex')
      .slice(0, 32);
  }

  mayHaveAny(place: Place): boolean {
    return this.#claiming !== null || this.#rollouts.has(nameOf(place));
  }

  takenOver(): RatchetError | null {
    return this.#takenOver;
  }

  /** Reads all that is there, and claims what follows. */
  async #claim(): Promise<void> {
    const numbers = Array.from({ length: this.#newest }, (_, i) => i + 1);
    for (let at = 0; at < numbers.length; at += readsAtOnce) {
      const parts = await Promise.all(numbers.slice(at, at + readsAtOnce).map((number) => this.#read(number)));
      for (const [i, part] of parts.entries()) {
        this.#earlier.add(part.attempt);
        this.#take(part, at + i + 1);
      }
    }
    for (;;) {
      const other = await this.#append([]);
      if (other === null) return;
      // An attempt that began after this one was opened has taken the log over; one from before only was faster.
      if (!this.#earlier.has(other.attempt)) throw this.#isTakenOver();
      this.#take(other, this.#newest);
    }
  }

  async #read(number: number): Promise<NotesPart> {
    const key = `${this.#prefix}${number}.json`;
    const bytes = await this.#store.read(key);
    if (bytes !== null) return partIn(bytes, this.#store.uri + key);
    throw new RatchetError(
      'CheckpointDamaged',
      `${this.#store.uri}${key} is missing, and later notes of its rollouts are there. Restore it from a copy: without it nobody knows which of their calls were made.`,
    );
  }

  #take({ attempt, notes }: NotesPart, number: number): void {
    this.#first ??= attempt;
    for (const { before: _, ...note } of notes) this.#hold(note, null);
    this.#areIn(number, notes);
  }

  /** Stores the next object; that of another attempt, which is there instead, is returned. */
  async #append(notes: readonly StoredNote[]): Promise<NotesPart | null> {
    for (;;) {
      const number = this.#newest + 1;
      const key = `${this.#prefix}${number}.json`;
      const bytes = encodeStored(key, { attempt: this.#attempt, notes } satisfies NotesPart);
      const { stored, bytes: there } = await untilStored(() => this.#store.putIfAbsent(key, bytes), this.#signal);
      const part = stored ? null : partIn(there, this.#store.uri + key);
      if (stored && !(await this.#isKept())) throw this.#isTakenOver();
      this.#newest = number;
      if (part !== null && part.attempt !== this.#attempt) return part;
      this.#first ??= this.#attempt;
      // An earlier object of its own is there if the answer to its write was lost.
      if (stored || Buffer.compare(bytes, there) === 0) return null;
    }
  }

  /** Whether no note was removed so far. */
  async #isKept(): Promise<boolean> {
    const key = this.#removedFirst;
    if (key === undefined) return true;
    return (await untilStored(() => this.#store.readRange(key, 0, 1), this.#signal)) !== null;
  }

  #isTakenOver(): RatchetError {
    this.#takenOver ??= new RatchetError(
      'RolloutTakenOver',
      'Another attempt at these rollouts has begun, and goes on with them: this one can begin or settle nothing more.',
    );
    return this.#takenOver;
  }
}

class NotesOfPlace implements NotesView {
  readonly #log: NotesLog;
  readonly #place: Place;

  constructor(log: NotesLog, place: Place) {
    this.#log = log;
    this.#place = place;
  }

  put(kind: string, key: string, value: JsonValue): Promise<JsonValue> {
    return this.#log.put(this.#place, { kind, key, value });
  }

  get(kind: string, key: string): Promise<JsonValue | undefined> {
    return this.#log.get(this.#place, kind, key);
  }

  all(kind: string): Promise<Map<string, JsonValue>> {
    return this.#log.all(this.#place, kind);
  }

  uniqueKey(key: string): Promise<string> {
    return this.#log.uniqueKey(this.#place, key);
  }

  mayHaveAny(): boolean {
    return this.#log.mayHaveAny(this.#place);
  }

  takenOver(): RatchetError | null {
    return this.#log.takenOver();
  }
}

export interface NotesLogOptions {
  readonly signal: AbortSignal;
  readonly before: (places: readonly Place[]) => Promise<unknown>;
  /**
   * Key of an object that is removed before any note is, once the rollouts are over: an attempt that awakes then finds
   * no claim of others, and must not take that for leave to go on. Missing: nothing is ever removed.
   */
  readonly removedFirst?: string | undefined;
  /** Keys that include all below the prefix, as they were when the attempt began; missing: the store is asked. */
  readonly keys?: readonly string[];
}

export function nameOf({ group, index }: Place): string {
  return `${group}/${index}`;
}

function sizeOf(value: JsonValue): number {
  return Buffer.byteLength(JSON.stringify(value));
}

function partIn(bytes: Uint8Array, key: string): NotesPart {
  return decodeStored<NotesPart>(bytes, key, notesShape);
}

export const notesShape: Shape = ({ attempt, notes }) => ({
  'the name of its attempt': typeof attempt === 'string',
  'a list of notes': Array.isArray(notes),
});

function numberOfNewest(keys: readonly string[], prefix: string): number {
  const numbers = keys
    .filter((key) => key.startsWith(prefix))
    .map((key) => Number.parseInt(key.slice(prefix.length), 10));
  return Math.max(0, ...numbers.filter((number) => Number.isSafeInteger(number)));
}
