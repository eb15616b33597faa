import { readdir } from 'node:fs/promises';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { RatchetError } from '../core/errors.ts';
import type { ObjectRef } from '../core/rl/run-state.ts';
import type { Staging, Store, StoredSize, StoredStream, Uploads } from './types.ts';

/** Identifies a place: an object that was written when the run was created, and that stays there. */
export interface Landmark {
  readonly key: string;
  /** Distinguishes landmarks with the same key. */
  readonly is: string;
  /** Null if these bytes are the landmark; else the difference, in words: expected …, found …. */
  readonly differs: (bytes: Uint8Array) => string | null | Promise<string | null>;
}

const answerMsMax = 10_000;

/** File handles or memory ran out, which says nothing about the store. */
const ofThisProcess = ['EMFILE', 'ENFILE', 'ENOMEM'];

interface SeenOptions {
  /** Time for which a seen place is not checked again. */
  readonly freshMs?: number;
  /** Distinguishes places within one process; required with `freshMs`. */
  readonly name?: string;
}

/** When each place was last seen. Bounded by the runs of a process. */
const seenAt = new Map<string, number>();
const placesMax = 256;

/**
 * A store in which something was already created. Without its mount every object looks missing and every write goes to the wrong disk. So
 * nothing is written, missing or damaged unless the landmark is seen. Otherwise every call throws `StoreNotSeen`, and another machine may
 * succeed.
 */
export class SeenStore implements Store {
  readonly uri: string;
  readonly staging?: Staging;
  readonly uploads?: Uploads;
  readonly leftovers?: (olderThanMs: number) => Promise<string[]>;
  readonly #store: Store;
  readonly #landmark: Landmark;
  readonly #options: SeenOptions;

  constructor(store: Store, landmark: Landmark, options: SeenOptions = {}) {
    this.#store = store;
    this.#landmark = landmark;
    this.#options = options;
    this.uri = store.uri;
    const { staging } = store;
    if (staging) {
      this.staging = {
        folder: (prefix) => this.#write(() => staging.folder(prefix)),
        seal: (prefix) => this.#write(() => staging.seal(prefix)),
        settle: (from, to) => this.#write(() => staging.settle(from, to)),
      };
    }
    const { uploads } = store;
    if (uploads) {
      this.uploads = {
        cutOff: (olderThanMs) => this.#look(() => uploads.cutOff(olderThanMs)),
        abort: (upload) => this.#write(() => uploads.abort(upload)),
      };
    }
    if (store.leftovers) this.leftovers = (olderThanMs) => this.#look(() => store.leftovers!(olderThanMs));
  }

  put(key: string, bytes: Uint8Array): Promise<ObjectRef> {
    return this.#write(() => this.#store.put(key, bytes));
  }

  putFile(...given: Parameters<Store['putFile']>): Promise<ObjectRef> {
    return this.#write(() => this.#store.putFile(...given));
  }

  putIfAbsent(key: string, bytes: Uint8Array): Promise<{ readonly stored: boolean; readonly bytes: Uint8Array }> {
    return this.#write(() => this.#store.putIfAbsent(key, bytes));
  }

  append(key: string, line: string | Uint8Array): Promise<void> {
    return this.#write(() => this.#store.append(key, line));
  }

  removeAll(prefix: string): Promise<void> {
    return this.#write(() => this.#store.removeAll(prefix));
  }

  get(ref: ObjectRef): Promise<Uint8Array> {
    return this.#look(() => this.#store.get(ref));
  }

  verify(ref: ObjectRef): Promise<void> {
    return this.#look(() => this.#store.verify(ref));
  }

  read(key: string): Promise<Uint8Array | null> {
    return this.#look(() => this.#store.read(key));
  }

  list(prefix: string): Promise<string[]> {
    return this.#look(() => this.#store.list(prefix));
  }

  async *sizes(prefix: string): AsyncGenerator<StoredSize> {
    let isEmpty = true;
    for await (const each of this.#store.sizes(prefix)) {
      isEmpty = false;
      yield each;
    }
    if (isEmpty) await this.requireSeen();
  }

  stream(key: string): Promise<StoredStream | null> {
    return this.#look(() => this.#store.stream(key));
  }

  readFrom(key: string, offset: number): Promise<Uint8Array | null> {
    return this.#look(() => this.#store.readFrom(key, offset));
  }

  readRange(key: string, offset: number, bytes: number): Promise<Uint8Array | null> {
    return this.#look(() => this.#store.readRange(key, offset, bytes));
  }

  localFolder(prefix: string): Promise<string> {
    return this.#look(() => this.#store.localFolder(prefix));
  }

  /** Throws `StoreNotSeen` unless the landmark is there. `isNow`: check even if it was seen a moment ago. */
  async requireSeen({ isNow = false } = {}): Promise<void> {
    const { freshMs = 0, name = '' } = this.#options;
    if (!isNow && performance.now() - (seenAt.get(name) ?? -Infinity) < freshMs) return;
    const { key, differs } = this.#landmark;
    const bytes = await this.#answered(this.#store.read(key)).catch((error: unknown) => {
      const isOurs =
        error instanceof RatchetError || ofThisProcess.includes((error as NodeJS.ErrnoException).code ?? '');
      throw isOurs ? error : this.#notSeen(messageOf(error), error);
    });
    if (bytes === null) throw this.#notSeen(`expected ${key} there, found ${await this.#whatIsThere()}`);
    const difference = await differs(bytes);
    if (difference !== null) throw this.#notSeen(`another run of this name lies there: ${difference}`);
    if (freshMs === 0) return;
    seenAt.set(name, performance.now());
    if (seenAt.size > placesMax) seenAt.delete(seenAt.keys().next().value!);
  }

  /** Calls on a mount may hang for ever when its server is gone. Requests to a bucket have their own time limit. */
  async #answered<T>(reading: Promise<T>): Promise<T> {
    if (!this.uri.startsWith('file:')) return reading;
    const isOver = new AbortController();
    const late = delay(answerMsMax, undefined, { signal: isOver.signal }).then(() => {
      throw new Error(`${this.#landmark.key} was not read within ${answerMsMax / 1000} s`);
    });
    try {
      return await Promise.race([reading, late]);
    } finally {
      isOver.abort();
      late.catch(() => undefined);
    }
  }

  async #write<T>(work: () => Promise<T>): Promise<T> {
    await this.requireSeen();
    return this.#look(work);
  }

  /** Checks the landmark before an object counts as missing or a failure counts as the object's. */
  async #look<T>(work: () => Promise<T>): Promise<T> {
    let found: T;
    try {
      found = await work();
    } catch (error) {
      if (isOfPlace(error)) await this.requireSeen({ isNow: true });
      throw error;
    }
    if (found === null || found === false || (Array.isArray(found) && found.length === 0)) await this.requireSeen();
    return found;
  }

  #notSeen(why: string, cause?: unknown): RatchetError {
    const remedy = this.uri.startsWith('file:')
      ? 'Mount the folder there, the same for all machines of the run, or name a store that all reach ([store] uri)'
      : 'Give it the same bucket, server and credentials as the other machines of the run';
    return new RatchetError(
      'StoreNotSeen',
      `the store ${this.uri} is not seen: ${why}. Nothing is written there. ${remedy}; the run then continues by itself.`,
      cause === undefined ? {} : { cause },
    );
  }

  async #whatIsThere(): Promise<string> {
    if (!this.uri.startsWith('file:')) return 'none';
    return readdir(fileURLToPath(this.uri)).then(
      (names) => (names.length === 0 ? 'an empty folder' : `a folder without it (${names.length} other entries)`),
      (error: unknown) =>
        (error as NodeJS.ErrnoException).code === 'ENOENT'
          ? 'no such folder'
          : `what cannot be listed: ${messageOf(error)}`,
    );
  }
}

/** Throws `StoreNotSeen` unless the landmark is there. Returns for stores without a landmark. */
export async function requireSeen(store: Store, options: { readonly isNow?: boolean } = {}): Promise<void> {
  if (store instanceof SeenStore) await store.requireSeen(options);
}

/** Whether the whole place may be the cause: an object is missing or damaged, or the system refused access. */
function isOfPlace(error: unknown): boolean {
  if (error instanceof RatchetError) return error.code === 'CheckpointDamaged' || error.code === 'StoreUnavailable';
  return typeof (error as NodeJS.ErrnoException).errno === 'number';
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
