import type { ObjectRef } from '../../core/rl/run-state.ts';

/** The store port, scoped to one run's folder. Objects are immutable: a key is written once, or again with the same bytes. */
export interface Store {
  /** Where the folder lies, for people: `file:///…/outputs/run/`. */
  readonly uri: string;
  /** Durable when it returns. Writing the same key again replaces it: only for keys whose content is determined by it. */
  put(key: string, bytes: Uint8Array): Promise<ObjectRef>;
  /** As `put`, of a file on this machine (weights), without holding it in memory. */
  putFile(key: string, file: string): Promise<ObjectRef>;
  /** Durable when it returns. Of several writers one wins; all learn what is there. */
  putIfAbsent(key: string, bytes: Uint8Array): Promise<{ readonly stored: boolean; readonly bytes: Uint8Array }>;
  /** Throws `CheckpointDamaged` when a reference's bytes have another sha256. */
  get(ref: ObjectRef): Promise<Uint8Array>;
  /** Throws `CheckpointDamaged` unless the file in `localFolder` that a reference names has its sha256; it is not held in memory. */
  verify(ref: ObjectRef): Promise<void>;
  /** null when there is no such key. */
  read(key: string): Promise<Uint8Array | null>;
  /** Keys below a prefix, sorted. */
  list(prefix: string): Promise<string[]>;
  /** Removes everything below a prefix; nothing there is fine. */
  removeAll(prefix: string): Promise<void>;
  /** Adds a line, or a record, to a log that may be rebuilt at any time (metrics). Not durable by itself. */
  append(key: string, line: string | Uint8Array): Promise<void>;
  /** A log from this byte on: empty where it is no longer than that, null when there is none or it is shorter. Perhaps not all of what is new. */
  readFrom(key: string, offset: number): Promise<Uint8Array | null>;
  /** So many bytes of an object from an offset on, or fewer where it ends; null when there is none. Not of a log. */
  readRange(key: string, offset: number, bytes: number): Promise<Uint8Array | null>;
  /** A folder on this machine, below `localRoot`, that holds the objects below a prefix, for programs that read files. */
  localFolder(prefix: string): Promise<string>;
  /** Files of writes that were cut off, older than this. Absent where a write leaves none. */
  leftovers?(olderThanMs: number): Promise<string[]>;
  /** Where the store is a folder itself: what a program writes there need not be copied. Absent elsewhere. */
  readonly staging?: Staging;
}

/** Another user may put a link in the place of a folder on the way. So programs write through `at`, which leads to this one until it is closed. */
export interface StagedFolder {
  readonly at: string;
  /** Its path when it was opened, for messages. */
  readonly path: string;
  close(): Promise<void>;
}

/** Files of programs, written into the store's own folder. */
export interface Staging {
  /** A new folder on this machine for what will lie below a prefix, opened. */
  folder(prefix: string): Promise<StagedFolder>;
  /** Makes what was written below a prefix durable. */
  seal(prefix: string): Promise<void>;
  /**
   * Moves a sealed file, or with `/` at the end a folder, to its place, in which it is durable when this returns; what was
   * there goes. False when there is nothing to move (any more).
   */
  settle(from: string, to: string): Promise<boolean>;
}
