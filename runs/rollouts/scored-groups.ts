import { createGunzip } from 'node:zlib';
import { Readable } from 'node:stream';
import { rowsKeptBytesMax, scoredReadAhead } from '../../core/limits.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import type { ObjectRef, SamplingRound } from '../../core/rl/run-state.ts';
import { sha256 } from '../../store/file-store.ts';
import { damaged, isRecord, isZipped, type Shape, textBytesMax, zipped } from '../../store/objects.ts';
import type { Store } from '../../store/types.ts';
import { layout, olderScoredNames } from '../layout.ts';
import { decodeStoredRow, decodeStoredRows, encodeStoredRows } from '../forms/stored-forms.ts';
import { readRows, type RunPlace, storeOf } from '../run-access.ts';

export const scoredShape: Shape = ({ ordinal, environment, rollouts }) => ({
  'a group with its number and environment': Number.isSafeInteger(ordinal) && typeof environment === 'string',
  'rollouts with turns':
    Array.isArray(rollouts) && rollouts.every((one) => isRecord(one) && Array.isArray(one['turns'])),
});

/** Groups of a chunk, or of a part of one, as they were stored: by ordinal. Large objects are unpacked one group at a time. */
export async function* scoredGroups(run: RunPlace, ref: ObjectRef): AsyncGenerator<ScoredGroup> {
  if (ref.bytes <= rowsKeptBytesMax) {
    yield* await readRows<ScoredGroup>(run, ref, scoredShape);
    return;
  }
  yield* scoredGroupsIn(await storeOf(run).get(ref), storeOf(run).uri + ref.key);
}

/** The groups in the bytes of a scored object, unpacked one at a time. */
export async function* scoredGroupsIn(bytes: Uint8Array, where: string): AsyncGenerator<ScoredGroup> {
  let number = 0;
  for await (const line of linesOf(bytes, where))
    yield decodeStoredRow<ScoredGroup>(line, where, ++number, scoredShape);
}

const newline = 0x0a;
/** Bytes unpacked at once. */
const chunkBytes = 1024 * 1024;

async function* linesOf(bytes: Uint8Array, where: string): AsyncGenerator<Uint8Array> {
  let open: Buffer[] = [];
  let length = 0;
  const add = (piece: Buffer): void => {
    open.push(piece);
    length += piece.byteLength;
    if (length > textBytesMax)
      throw damaged(where, `expected rows of at most ${textBytesMax} bytes, found a longer one`);
  };
  const close = (): Uint8Array => {
    const line = Buffer.concat(open);
    [open, length] = [[], 0];
    return line;
  };
  for await (const chunk of unpackedChunks(bytes, where)) {
    let from = 0;
    for (let at = chunk.indexOf(newline); at >= 0; at = chunk.indexOf(newline, from)) {
      add(chunk.subarray(from, at));
      from = at + 1;
      if (length > 0) yield close();
    }
    add(chunk.subarray(from));
  }
  if (length > 0) yield close();
}

async function* unpackedChunks(bytes: Uint8Array, where: string): AsyncGenerator<Buffer> {
  const given = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  try {
    if (!isZipped(bytes)) yield given;
    else yield* Readable.from([given]).pipe(createGunzip({ chunkSize: chunkBytes })) as AsyncIterable<Buffer>;
  } catch (cause) {
    throw damaged(where, 'expected rows of JSON, found a gzip file that is cut or changed', cause);
  }
}

/**
 * Stores scored groups of a chunk, or of a part of one. Idempotent: the first write wins, and its content is returned.
 * null if nothing is stored and there are no groups.
 */
export async function storeScored(
  store: Store,
  key: string,
  groups: readonly ScoredGroup[] | null,
): Promise<{ readonly scored: ObjectRef; readonly groups: readonly ScoredGroup[] } | null> {
  const { stored = false, bytes } = groups
    ? await store.putIfAbsent(key, await zipped(encodeStoredRows(key, groups)))
    : { bytes: await store.read(key) };
  if (bytes === null) return null;
  const found = stored ? groups! : decodeStoredRows<ScoredGroup>(bytes, key);
  return { scored: { key, sha256: sha256(bytes), bytes: bytes.byteLength, count: found.length }, groups: found };
}

/**
 * Groups with their original rewards from a round scored as a whole, as until 25 November 2026. null if the round was
 * not scored so, or lacks some of them.
 */
export async function scoredWithRound(
  store: Store,
  lineage: string,
  { step, first, last }: Pick<SamplingRound, 'step' | 'first' | 'last'>,
  ordinals: readonly number[],
): Promise<readonly ScoredGroup[] | null> {
  const own = new Set(ordinals);
  for (const key of olderScoredNames.map((name) => layout.round(lineage, step, first, last) + name)) {
    const bytes = await store.read(key);
    const all = bytes ? decodeStoredRows<ScoredGroup>(bytes, key, scoredShape) : [];
    const found = all.filter(({ ordinal }) => own.has(ordinal));
    if (bytes && found.length === own.size) return found;
  }
  return null;
}

async function* oneByOne<T>(items: Iterable<T>): AsyncGenerator<T, void> {
  yield* items;
}

interface FoundGroup {
  /** Key of the object it came from. */
  readonly key: string;
  readonly group: ScoredGroup;
  readonly isWanted: boolean;
}

/**
 * Groups of several objects, each read once from start to end. Wanted groups come by ordinal across objects; one that
 * is read before its turn is held back, which happens when an object's ordinals do not ascend. All others come as they
 * are read.
 */
export class GroupsInOrder implements AsyncIterable<FoundGroup> {
  /** Distinct objects. */
  readonly refs: readonly ObjectRef[];
  readonly #run: RunPlace;
  readonly #wanted: readonly { readonly ordinal: number; readonly key: string }[];
  readonly #chosen = new Map<string, Set<number>>();
  readonly #readers = new Map<string, AsyncIterator<ScoredGroup, void>>();
  readonly #opened = new Set<string>();
  readonly #waiting = new Map<string, Map<number, ScoredGroup>>();
  readonly #ahead = new Map<string, Promise<readonly ScoredGroup[]>>();

  constructor(
    run: RunPlace,
    sources: readonly { readonly ref: ObjectRef; readonly ordinals: readonly number[] }[],
    others: readonly ObjectRef[],
  ) {
    this.#run = run;
    for (const { ref, ordinals } of sources)
      this.#chosen.set(ref.key, new Set([...(this.#chosen.get(ref.key) ?? []), ...ordinals]));
    this.#wanted = [...this.#chosen]
      .flatMap(([key, ordinals]) => [...ordinals].map((ordinal) => ({ ordinal, key })))
      .toSorted((a, b) => a.ordinal - b.ordinal);
    const all = new Map([...sources.map(({ ref }) => ref), ...others].map((ref) => [ref.key, ref]));
    const used = new Set(this.#wanted.map(({ key }) => key));
    this.refs = [...used, ...[...all.keys()].filter((key) => !used.has(key))].map((key) => all.get(key)!);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<FoundGroup> {
    const last = new Map(this.#wanted.map(({ key, ordinal }) => [key, ordinal]));
    for (const { ordinal, key } of this.#wanted) {
      yield* this.#upTo(key, ordinal);
      // The object has been read to its end, and is dropped.
      if (last.get(key) === ordinal) yield* this.#rest(key);
    }
    for (const { key } of this.refs) if (!this.#opened.has(key)) yield* this.#rest(key);
  }

  /** The group itself, which is wanted, and before it those of its object that are not. */
  async *#upTo(key: string, ordinal: number): AsyncGenerator<FoundGroup> {
    const waiting = this.#waiting.get(key) ?? new Map<number, ScoredGroup>();
    this.#waiting.set(key, waiting);
    while (!waiting.has(ordinal)) {
      const group = await this.#next(key);
      if (group === null)
        throw damaged(storeOf(this.#run).uri + key, `expected the group ${ordinal} in it, found none`);
      if (this.#chosen.get(key)!.has(group.ordinal)) waiting.set(group.ordinal, group);
      else yield { key, group, isWanted: false };
    }
    const group = waiting.get(ordinal)!;
    waiting.delete(ordinal);
    yield { key, group, isWanted: true };
  }

  async *#rest(key: string): AsyncGenerator<FoundGroup> {
    for (let group = await this.#next(key); group !== null; group = await this.#next(key))
      yield { key, group, isWanted: false };
    this.#readers.delete(key);
  }

  async #next(key: string): Promise<ScoredGroup | null> {
    const reader = this.#readers.get(key) ?? (await this.#open(key));
    this.#readers.set(key, reader);
    const found = await reader.next();
    return found.done ? null : found.value;
  }

  async #open(key: string): Promise<AsyncIterator<ScoredGroup, void>> {
    this.#opened.add(key);
    const at = this.refs.findIndex((ref) => ref.key === key);
    for (const ref of this.refs.slice(at, at + scoredReadAhead)) {
      if (ref.bytes > rowsKeptBytesMax || (ref.key !== key && this.#opened.has(ref.key)) || this.#ahead.has(ref.key))
        continue;
      const rows = readRows<ScoredGroup>(this.#run, ref, scoredShape);
      rows.catch(() => undefined); // thrown when its turn comes
      this.#ahead.set(ref.key, rows);
    }
    const rows = this.#ahead.get(key);
    this.#ahead.delete(key);
    return rows ? oneByOne(await rows) : scoredGroups(this.#run, this.refs[at]!);
  }
}
