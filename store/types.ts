import type { ObjectRef } from '../core/rl/run-state.ts';

/**
 * The store port, scoped to one run's folder. Objects are immutable: a key is written once, or again with equal bytes.
 */
export interface Store {
  /** Place of the folder, for people: `file:///…/outputs/run/`. */
  readonly uri: string;
  /** Durable when it returns. Writing a key again replaces it: only for keys that determine their content. */
  put(key: string, bytes: Uint8Array): Promise<ObjectRef>;
  /** Stores a local file (weights) without holding it in memory; otherwise like `put`. `within`: where a link may lead, its own folder by default. */
  putFile(key: string, file: string, within?: readonly string[]): Promise<ObjectRef>;
  /** Durable when it returns. One of several writers wins; all get the stored bytes. */
  putIfAbsent(key: string, bytes: Uint8Array): Promise<{ readonly stored: boolean; readonly bytes: Uint8Array }>;
  /** Throws `CheckpointDamaged` when a reference's bytes have another sha256. */
  get(ref: ObjectRef): Promise<Uint8Array>;
  /** Throws `CheckpointDamaged` unless the file in `localFolder` that a reference names has its sha256; it is not held in memory. */
  verify(ref: ObjectRef): Promise<void>;
  /** null when there is no such key. */
  read(key: string): Promise<Uint8Array | null>;
  /** Keys below a prefix, sorted. */
  list(prefix: string): Promise<string[]>;
  /** What lies below a prefix, as it is found: also leftovers of interrupted writes and parts of logs. No order. */
  sizes(prefix: string): AsyncIterable<StoredSize>;
  /**
   * An object's content in pieces, for one that may be larger than memory; null when there is none. A log that grows is
   * as it was when it was opened. Reading it throws `CheckpointDamaged` where it ends too early, or at its end where the
   * store has another sha256 of it.
   */
  stream(key: string): Promise<StoredStream | null>;
  /** Removes everything below a prefix, even if there is nothing. */
  removeAll(prefix: string): Promise<void>;
  /** Adds a line, or a record, to a log that may be rebuilt at any time (metrics). Not durable by itself. */
  append(key: string, line: string | Uint8Array): Promise<void>;
  /**
   * A log from this byte on: empty if it ends there, null when there is none or it is shorter. May return only a part.
   */
  readFrom(key: string, offset: number): Promise<Uint8Array | null>;
  /** So many bytes of an object from an offset on, or fewer at its end; null when there is none. Not for logs. */
  readRange(key: string, offset: number, bytes: number): Promise<Uint8Array | null>;
  /** A folder on this machine, below `localRoot`, that holds the objects below a prefix, for programs that read files. */
  localFolder(prefix: string): Promise<string>;
  /** Leftover files of interrupted writes, older than this. Absent if writes leave none. */
  leftovers?(olderThanMs: number): Promise<string[]>;
  /** Present if objects are stored in parts, which stay when a writer dies before the last one. */
  readonly uploads?: Uploads;
  /** Present if the store is a local folder: files written there need no copy. */
  readonly staging?: Staging;
}

/** An upload in parts whose writer is gone. */
export interface CutOffUpload {
  /** Where its object would be. */
  readonly key: string;
  readonly id: string;
  /** Of its parts so far. */
  readonly bytes: number;
}

export interface Uploads {
  /** Those that have got nothing for so long; a text: why the server does not list them. */
  cutOff(olderThanMs: number): Promise<readonly CutOffUpload[] | string>;
  /** Removes its parts. Does nothing where it was completed or aborted meanwhile. */
  abort(upload: Pick<CutOffUpload, 'key' | 'id'>): Promise<void>;
}

export interface StoredSize {
  readonly key: string;
  readonly bytes: number;
  /** When it was last put, by the clock of the store's machine. */
  readonly putAtMs: number;
}

/** `content` is read once, to its end or until its reader leaves. */
export interface StoredStream {
  readonly bytes: number;
  readonly content: AsyncIterable<Uint8Array>;
}

/**
 * Another user may replace a folder on the way by a link. So programs write through `at`, which refers to this folder
 * until it is closed.
 */
export interface StagedFolder {
  readonly at: string;
  /** Its path when it was opened, for messages. */
  readonly path: string;
  close(): Promise<void>;
}

/** Files that programs write into the store's own folder. */
export interface Staging {
  /** Opens a new local folder for the future content of a prefix. */
  folder(prefix: string): Promise<StagedFolder>;
  /** Makes files below a prefix durable. */
  seal(prefix: string): Promise<void>;
  /**
   * Moves a sealed file, or with `/` at the end a folder, to its place, durable on return; an existing one is replaced.
   * False if there is nothing (left) to move.
   */
  settle(from: string, to: string): Promise<boolean>;
}
