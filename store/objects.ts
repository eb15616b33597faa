import { parseExact, parseExactMembers, stringifyExact, writtenLike } from '../core/exact-json.ts';
import { Readable } from 'node:stream';
import { promisify } from 'node:util';
import { gunzipSync, gzip } from 'node:zlib';
import { RatchetError } from '../core/errors.ts';
import type { ObjectRef } from '../core/rl/run-state.ts';
import type { Store, StoredStream } from './types.ts';

/** Slightly below Node's longest string. */
export const textBytesMax = 500 * 1024 * 1024;

/** JSON and JSON lines as objects. Canonical by construction: equal values give equal bytes. */
export async function putJson(store: Store, key: string, value: unknown): Promise<ObjectRef> {
  return store.put(key, encodeJson(value));
}

export function encodeJson(value: unknown): Uint8Array {
  return Buffer.from(`${JSON.stringify(value)}\n`);
}

/** An object that is in memory, as one that is not. */
export function streamOf(bytes: Uint8Array): StoredStream {
  return { bytes: bytes.byteLength, content: Readable.from(bytes.byteLength === 0 ? [] : [bytes]) };
}

/** Required properties of a stored object, in words, each with whether it holds. */
export type Shape = (value: Readonly<Record<string, unknown>>) => Readonly<Record<string, boolean>>;

/**
 * A stored object. An object found by its key alone, not by a sha256, may have been edited: `key` names it in errors,
 * and `shape` checks the fields that are relied on.
 */
export function decodeJson<T>(bytes: Uint8Array, key: string, shape?: Shape): T {
  const value = parse(textOf(bytes, key), key);
  requireShape(value, key, shape);
  return value as T;
}

/** A stored form. All forms are listed in `runs/forms/stored-forms.ts`. */
export interface StoredForm {
  /** Name in messages, such as "the leases of a round". */
  readonly name: string;
  /** The version that is written. Objects and rows carry it as `schemaVersion`; without one they are version 1. */
  readonly version: number;
  /** `upgrades[0]` turns version 1 into version 2, and so on: one for each version before the present one. */
  readonly upgrades: readonly Upgrade[];
  /** Keeps `schemaVersion` in the decoded value. */
  readonly tellsVersion?: true;
  /** Recognizes data written before versions were counted, and turns it into version 1. */
  readonly uncounted?: Upgrade;
}

/** Turns a parsed object into the next version; `where` is its name in errors. */
type Upgrade = (value: never, where: string) => unknown;

/** Encodes an object in its present version. Equal values give equal bytes. */
export function encodeForm(form: StoredForm, value: object): Uint8Array {
  return encodeJson(Object.assign({ schemaVersion: form.version }, value, { schemaVersion: form.version }));
}

/** Decodes an object of any version to the present one, without its version field. `shape` lists the fields the caller relies on. */
export function decodeForm<T>(form: StoredForm, bytes: Uint8Array, key: string, shape?: Shape): T {
  const value = presentVersion(form, parse(textOf(bytes, key), key), key);
  return told<T>(form, value, key, shape);
}

function told<T>({ tellsVersion }: StoredForm, value: unknown, where: string, shape?: Shape): T {
  requireShape(value, where, shape);
  if (tellsVersion === true) return value as T;
  const { schemaVersion: _, ...rest } = value as Record<string, unknown>;
  return rest as T;
}

/** Encodes rows of a form, each with its version. */
export function encodeFormRows(form: StoredForm, rows: readonly object[]): Uint8Array {
  return encodeRows(rows.map((row) => ({ schemaVersion: form.version, ...row })));
}

/** Decodes a form that is a list of texts. */
export function decodeFormTexts(form: StoredForm, bytes: Uint8Array, key: string): string[] {
  const value = presentVersion(form, parse(textOf(bytes, key), key), key);
  if (Array.isArray(value) && value.every((item) => typeof item === 'string')) return value;
  throw damaged(key, `expected a list of texts, found ${kindOf(value)}`);
}

/** Decodes rows of any version to the present one, without their version field. */
export function decodeFormRows<T>(form: StoredForm, bytes: Uint8Array, key: string, shape?: Shape): T[] {
  return rowsIn(textOf(bytes, key), key).map(({ line, where }) => formRowIn<T>(form, line, where, shape));
}

export function decodeFormRow<T>(form: StoredForm, line: Uint8Array, where: string, shape?: Shape): T {
  return formRowIn(form, textOf(line, where), where, shape);
}

function formRowIn<T>(form: StoredForm, line: string, where: string, shape?: Shape): T {
  return told(form, presentVersion(form, parse(line, where), where), where, shape);
}

/** Upgrades a parsed object of any version to the present one. Throws a named error for a newer version. */
export function presentVersion(form: StoredForm, value: unknown, where: string): unknown {
  // A list carries no version, so only version 1 of a form may be a list.
  if (!isRecord(value) && !(Array.isArray(value) && form.upgrades.length > 0)) return value;
  const said = isRecord(value) ? (value['schemaVersion'] ?? 1) : 1;
  if (!Number.isSafeInteger(said) || Number(said) < 1)
    throw damaged(where, `expected a version of ${form.name} (schemaVersion), found ${JSON.stringify(said)}`);
  const version = Number(said);
  if (version > form.version) {
    const known = `${form.version}${form.version === 1 ? '' : ' or older'}`;
    throw newer(where, `expected ${form.name} of version ${known}, found version ${version}`);
  }
  let now: unknown = value;
  if (version === 1 && form.uncounted) now = form.uncounted(now as never, where);
  for (const upgrade of form.upgrades.slice(version - 1)) now = upgrade(now as never, where);
  return isRecord(now) && version < form.version ? { ...now, schemaVersion: form.version } : now;
}

export async function putRows(store: Store, key: string, rows: readonly unknown[]): Promise<ObjectRef> {
  return { ...(await store.put(key, encodeRows(rows))), count: rows.length };
}

/** Keeps the written form of a results row's numbers, as in its record, including its state columns. */
export function rowLike<T extends object>(row: T, record: Readonly<Record<string, unknown>> | undefined): T {
  const columns = record?.['state_columns'];
  return writtenLike(row, record, isRecord(columns) ? columns : undefined);
}

/** Parses a row by another program; null if it is no JSON object, for example when its writer was killed. */
export function rowOfOthers(line: string): Readonly<Record<string, unknown>> | null {
  try {
    const value = parseExact(line);
    return isRecord(value) ? value : null;
  } catch {
    return null;
  }
}

export function encodeRows(rows: readonly unknown[]): Uint8Array {
  return Buffer.from(rows.map((row) => `${stringifyExact(row)}\n`).join(''));
}

/** Encodes rows compressed: token ids and log probabilities shrink to a ninth of their text. */
export async function packRows(rows: readonly unknown[]): Promise<Uint8Array> {
  return zipped(encodeRows(rows));
}

/** Asynchronous, because a batch may be large. */
export const zipped: (bytes: Uint8Array) => Promise<Uint8Array> = promisify<Uint8Array, Buffer>(gzip);

export function isZipped(bytes: Uint8Array): boolean {
  return bytes[0] === 0x1f && bytes[1] === 0x8b;
}

/** The original bytes, whether stored compressed or not. */
export function unpacked(bytes: Uint8Array, key: string): Uint8Array {
  if (!isZipped(bytes)) return bytes;
  try {
    return gunzipSync(bytes, { maxOutputLength: textBytesMax });
  } catch (cause) {
    const isLong = (cause as { readonly code?: string }).code === 'ERR_BUFFER_TOO_LARGE';
    const what = isLong ? `more than ${textBytesMax} bytes of them` : 'a gzip file that is cut or changed';
    throw damaged(key, `expected rows of JSON, found ${what}`, cause);
  }
}

/** Rows that are objects; `shape` as above. */
export function decodeRows<T>(bytes: Uint8Array, key: string, shape?: Shape): T[] {
  return rowsIn(textOf(bytes, key), key).map(({ line, where }) => {
    const row = parse(line, where);
    requireShape(row, where, shape);
    return row as T;
  });
}

export function decodeRow<T>(line: Uint8Array, where: string, shape?: Shape): T {
  const row = parse(textOf(line, where), where);
  requireShape(row, where, shape);
  return row as T;
}

function rowsIn(text: string, key: string): { readonly line: string; readonly where: string }[] {
  return text
    .split('\n')
    .filter((line) => line.length > 0)
    .map((line, i) => ({ line, where: `${key}, line ${i + 1}` }));
}

/** The run whose commits, lineages, claims, settings, batches or rounds cannot be read, in `file:///…/outputs/RUN/lineages/main/steps/step_4.json`. */
const runOf = (where: string): string | undefined =>
  /([^/]+)\/(?:(?:lineages\/[^/]+\/steps|origins|claims|specs)\/|(?:lineages\/[^/]+\/)?(?:batches\/step_|rollouts\/step_\d+\/groups_)|run\.json$)/.exec(
    where,
  )?.[1];

/** Reports an object that differs from what was stored: a retry does not help. `what`: expected …, found …. */
export function damaged(where: string, what: string, cause?: unknown): RatchetError {
  return new RatchetError(
    'CheckpointDamaged',
    `${where}: ${what}. It is not what was stored. Restore it from a copy.${whatIsWhole(where)}`,
    cause === undefined ? {} : { cause },
  );
}

/** Reports an object of an unknown version. It is not damaged: a worker of a newer version can read it. */
export function newer(where: string, what: string): RatchetError {
  return new RatchetError(
    'WrittenByNewer',
    `${where}: ${what}. A newer Ratchet wrote it. Continue with that Ratchet.${whatIsWhole(where)}`,
  );
}

function whatIsWhole(where: string): string {
  const run = runOf(where);
  return run === undefined ? '' : ` What else is whole: npx ratchet-rl fsck ${run}`;
}

/** Reads a value, or calls `otherwise` with the reason if it is damaged. Other failures are thrown. */
export async function orIfDamaged<T>(
  read: () => T | Promise<T>,
  otherwise: (why: string) => T | Promise<T>,
): Promise<T> {
  try {
    return await read();
  } catch (error) {
    if (!isUnreadable(error)) throw error;
    return otherwise(error.message);
  }
}

/** Damaged, or written by a newer Ratchet. */
export function isUnreadable(error: unknown): error is RatchetError {
  return error instanceof RatchetError && (error.code === 'CheckpointDamaged' || error.code === 'WrittenByNewer');
}

/** The kind of a value, in words. */
function kindOf(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'a list';
  return typeof value === 'object' ? 'another object' : `a ${typeof value}`;
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function requireShape(value: unknown, where: string, shape?: Shape): void {
  if (!isRecord(value)) throw damaged(where, `expected a JSON object, found ${kindOf(value)}`);
  for (const [expected, isThere] of Object.entries(shape?.(value) ?? {}))
    if (!isThere) throw damaged(where, `expected ${expected}, which it does not have`);
}

function textOf(stored: Uint8Array, key: string): string {
  if (stored.byteLength > textBytesMax)
    throw damaged(key, `expected at most ${textBytesMax} bytes of JSON, found ${stored.byteLength}`);
  const bytes = unpacked(stored, key);
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('utf8');
}

/** Members that belong to environments and datasets: their numbers keep their written form. */
const membersOfOthers = ['record', 'rows', 'example', 'messages', 'tools', 'chosen', 'rejected'];

function parse(text: string, where: string): unknown {
  try {
    return parseExactMembers(text, membersOfOthers);
  } catch (cause) {
    throw damaged(where, `expected JSON, found ${text.trim() === '' ? 'nothing' : 'text that is none'}`, cause);
  }
}

/** Whether the object that a reference names is there with its sha256. */
export async function isSound(store: Store, ref: ObjectRef): Promise<boolean> {
  try {
    await store.verify(ref);
    return true;
  } catch (error) {
    if (error instanceof RatchetError && error.code === 'CheckpointDamaged') return false;
    throw error;
  }
}
