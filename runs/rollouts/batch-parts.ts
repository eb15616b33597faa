import type { ObservedSpan, PackedRow } from '../../core/rl/learning/batch.ts';
import { present } from '../../core/present.ts';
import { damaged, isRecord, newer } from '../../store/objects.ts';

/**
 * Rows of a batch, and a teacher's or trainer's values for them, as bytes, little endian:
 *
 *     8 bytes    "ratchetB", of a teacher's "ratchetT", of a trainer's "ratchetS"
 *     4 bytes    length of the head
 *     head       JSON, { rows: [{ tokens, counted, … }, …] }, filled up with spaces
 *     columns    of one row after the other, each filled up to 8 bytes; of a teacher's rows the log probabilities alone, of a trainer's
 *                float32 log probabilities and, where it reports them, entropies
 *                token ids     int32    for every token
 *                mask          bits     for every token, the first in the lowest bit
 *                logprobs      for the trained tokens, if the row has them: float32, or float64 when a number does not fit
 *                sampling      the same, if the row has them
 *                advantages    float64, unless the whole row has one
 *
 * Numbers are preserved, except that −0 becomes 0. Token ids, and the digits of log probabilities, are all but random: gzip
 * would take little more than a quarter off them (measured on ids as frequent as words are).
 */
interface RowHead {
  readonly tokens: number;
  readonly counted: number;
  /** Index among the rollouts of its batch. */
  readonly rollout: number;
  /** Advantage of all trained tokens; null: each has its own. */
  readonly advantage: number | null;
  /** Absent when the server reported none. */
  readonly logprobs?: Width;
  readonly sampling?: Width;
  /** Absent when it is the plan's. */
  readonly temperature?: number;
  readonly objective?: 'ref_kl';
  readonly observed?: readonly ObservedSpan[];
}

/** Bytes per number. */
type Width = 4 | 8;

const magics = { rows: 'ratchetB', taught: 'ratchetT', scores: 'ratchetS' } as const;
const magicBytes = 8;
const prefixBytes = magicBytes + 4;
const alignment = 8;

export interface EncodedRow<Head = RowHead> {
  readonly head: Head;
  readonly columns: readonly ArrayBufferView[];
  readonly bytes: number;
}

/** Throws for rows that only a bug can make: numbers at untrained tokens, or NaN. */
export function encodeRow(sample: Omit<PackedRow, 'rollout' | 'teacherLogprobs'>, rollout: number): EncodedRow {
  const { tokenIds, lossMask, behaviorLogprobs, samplingLogprobs, advantages } = sample;
  const { temperature, objective, observed } = sample;
  const mask = new Uint8Array(Math.ceil(tokenIds.length / 8));
  const places: number[] = [];
  for (let t = 0; t < tokenIds.length; t++) {
    if (lossMask[t] === 1) {
      mask[t >> 3]! |= 1 << (t & 7);
      places.push(t);
    } else if (
      lossMask[t] !== 0 ||
      (behaviorLogprobs?.[t] ?? 0) !== 0 ||
      (samplingLogprobs?.[t] ?? 0) !== 0 ||
      advantages[t] !== 0
    )
      throw new Error(`token ${t} of a row does not count, and has a number: mask ${lossMask[t]}`);
  }
  const logprobs = behaviorLogprobs && numbersOf(behaviorLogprobs, places);
  const sampling = samplingLogprobs && numbersOf(samplingLogprobs, places);
  const advantage = places.length === 0 ? 0 : finite(advantages[places[0]!]!);
  const isOne = places.every((t) => advantages[t] === advantage);
  const columns = [
    new Int32Array(tokenIds),
    mask,
    ...(logprobs ? [logprobs] : []),
    ...(sampling ? [sampling] : []),
    ...(isOne ? [] : [Float64Array.from(places, (t) => finite(advantages[t]!))]),
  ];
  const head: RowHead = {
    tokens: tokenIds.length,
    counted: places.length,
    rollout,
    advantage: isOne ? advantage : null,
    ...(logprobs ? { logprobs: widthOf(logprobs) } : {}),
    ...(sampling ? { sampling: widthOf(sampling) } : {}),
    ...present({ temperature, objective, observed }),
  };
  return { head, columns, bytes: alignedBytes(columns) };
}

export function encodePart(rows: readonly EncodedRow[]): Uint8Array {
  return encode(magics.rows, rows);
}

/** A teacher's log probabilities of the trained tokens, row by row. */
export function encodeTaught(rows: readonly (Float32Array | Float64Array)[]): Uint8Array {
  return encode(
    magics.taught,
    rows.map((values) => {
      const head = { counted: values.length, logprobs: widthOf(values) };
      return { head, columns: [values], bytes: alignedBytes([values]) };
    }),
  );
}

export function decodeTaught(given: Uint8Array, where: string): readonly (Float32Array | Float64Array)[] {
  const { heads, dataAt, bytes } = headsOf(given, { magic: magics.taught, isHead: isTaughtHead }, where);
  let at = dataAt;
  const places = heads.map(
    ({ counted, logprobs }) => (at += aligned(counted * logprobs)) - aligned(counted * logprobs),
  );
  if (at !== bytes.byteLength) throw damaged(where, `expected ${at} bytes by its head, found ${bytes.byteLength}`);
  return heads.map(({ counted, logprobs }, i) =>
    numbersAt(bytes, bytes.byteOffset + places[i]!, { count: counted, width: logprobs }),
  );
}

/** The trainer's values for the trained tokens of one row. */
export interface ScoredRow {
  /** Identifies the row by its tokens. */
  readonly row: string;
  readonly logprobs: Float32Array;
  readonly entropies: Float32Array | null;
}

export function encodeScores(rows: readonly ScoredRow[]): Uint8Array {
  return encode(
    magics.scores,
    rows.map(({ row, logprobs, entropies }) => {
      const columns = entropies ? [logprobs, entropies] : [logprobs];
      return {
        head: { row, counted: logprobs.length, columns: columns.length },
        columns,
        bytes: alignedBytes(columns),
      };
    }),
  );
}

export function decodeScores(given: Uint8Array, where: string): ScoredRow[] {
  const { heads, dataAt, bytes } = headsOf(given, { magic: magics.scores, isHead: isScoresHead }, where);
  const size = heads.reduce((sum, { counted, columns }) => sum + columns * aligned(counted * 4), dataAt);
  if (size !== bytes.byteLength) throw damaged(where, `expected ${size} bytes by its head, found ${bytes.byteLength}`);
  let at = bytes.byteOffset + dataAt;
  const take = (count: number): Float32Array => {
    const values = new Float32Array(bytes.buffer, at, count);
    at += aligned(count * 4);
    return values;
  };
  return heads.map(({ row, counted, columns }) => {
    return { row, logprobs: take(counted), entropies: columns === 2 ? take(counted) : null };
  });
}

interface ScoresHead {
  readonly row: string;
  readonly counted: number;
  readonly columns: 1 | 2;
}

function isScoresHead(value: unknown): value is ScoresHead {
  if (!isRecord(value)) return false;
  const { row, counted, columns } = value;
  return (
    typeof row === 'string' && Number.isSafeInteger(counted) && Number(counted) >= 0 && (columns === 1 || columns === 2)
  );
}

function encode(magic: string, rows: readonly EncodedRow<unknown>[]): Uint8Array {
  const text = JSON.stringify({ rows: rows.map(({ head }) => head) });
  const length = aligned(prefixBytes + Buffer.byteLength(text)) - prefixBytes;
  let at = prefixBytes + length;
  const bytes = Buffer.alloc(at + rows.reduce((sum, row) => sum + row.bytes, 0));
  bytes.fill(' ', 0, at);
  bytes.write(magic, 0, 'latin1');
  bytes.writeUInt32LE(length, magicBytes);
  bytes.write(text, prefixBytes, 'utf8');
  for (const { buffer, byteOffset, byteLength } of rows.flatMap(({ columns }) => columns)) {
    bytes.set(new Uint8Array(buffer, byteOffset, byteLength), at);
    at += aligned(byteLength);
  }
  return bytes;
}

/** A part in memory. Its rows are decoded on demand. */
export interface OpenedPart {
  readonly heads: readonly RowHead[];
  readonly row: (place: number) => Omit<PackedRow, 'rollout'>;
}

/** `where` names the object in errors about damage. */
export function decodePart(given: Uint8Array, where: string): OpenedPart {
  const { heads, dataAt, bytes } = headsOf(given, { magic: magics.rows, isHead }, where);
  const places: number[] = [];
  let at = dataAt;
  for (const head of heads) {
    places.push(at);
    at += rowBytes(head);
  }
  if (at !== bytes.byteLength) throw damaged(where, `expected ${at} bytes by its head, found ${bytes.byteLength}`);
  return { heads, row: (place) => decodeRow(bytes, places[place]!, heads[place]!, where) };
}

function headsOf<Head>(
  given: Uint8Array,
  { magic, isHead: isIt }: { readonly magic: string; readonly isHead: (value: unknown) => value is Head },
  where: string,
): { readonly heads: readonly Head[]; readonly dataAt: number; readonly bytes: Uint8Array } {
  // Columns are views of the bytes, so their start must be a multiple of 8.
  const bytes = given.byteOffset % alignment === 0 ? given : new Uint8Array(given);
  const view = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const found = view.toString('latin1', 0, magicBytes);
  if (bytes.byteLength >= prefixBytes && /^ratchet[A-Z]$/.test(found) && !Object.values<string>(magics).includes(found))
    throw newer(where, `expected columns of the form ${magic}, found ${found}`);
  if (bytes.byteLength < prefixBytes || found !== magic)
    throw damaged(where, 'expected rows of a batch, found other bytes');
  const dataAt = prefixBytes + view.readUInt32LE(magicBytes);
  let head: unknown = null;
  try {
    head = JSON.parse(view.toString('utf8', prefixBytes, dataAt));
  } catch {
    // reported below
  }
  const heads: unknown = isRecord(head) ? head['rows'] : null;
  if (!Array.isArray(heads) || !heads.every(isIt) || dataAt % alignment !== 0)
    throw damaged(where, 'expected the head of a part of a batch, found none');
  return { heads, dataAt, bytes };
}

function isHead(value: unknown): value is RowHead {
  if (!isRecord(value)) return false;
  const { tokens, counted, rollout, advantage, logprobs = 4, sampling = 4, temperature = 1 } = value;
  const { objective = 'ref_kl', observed = [] } = value;
  return (
    [tokens, counted, rollout].every((count) => Number.isSafeInteger(count) && Number(count) >= 0) &&
    Number(counted) <= Number(tokens) &&
    (advantage === null || Number.isFinite(advantage)) &&
    [logprobs, sampling].every((width) => width === 4 || width === 8) &&
    Number.isFinite(temperature) &&
    Number(temperature) > 0 &&
    objective === 'ref_kl' &&
    Array.isArray(observed) &&
    observed.every((span) => isSpan(span, Number(tokens)))
  );
}

function isSpan(value: unknown, tokens: number): value is ObservedSpan {
  if (!isRecord(value)) return false;
  const [from, to, weight] = [value['from'], value['to'], value['weight']].map(Number) as [number, number, number];
  return Number.isSafeInteger(from) && Number.isSafeInteger(to) && 0 < from && from < to && to <= tokens && weight > 0;
}

interface TaughtHead {
  readonly counted: number;
  readonly logprobs: Width;
}

function isTaughtHead(value: unknown): value is TaughtHead {
  if (!isRecord(value)) return false;
  const { counted, logprobs } = value;
  return Number.isSafeInteger(counted) && Number(counted) >= 0 && (logprobs === 4 || logprobs === 8);
}

function rowBytes({ tokens, counted, advantage, logprobs, sampling }: RowHead): number {
  const columns = [tokens * 4, Math.ceil(tokens / 8), counted * (logprobs ?? 0), counted * (sampling ?? 0)];
  return columns.reduce((sum, bytes) => sum + aligned(bytes), 0) + (advantage === null ? counted * 8 : 0);
}

function decodeRow(bytes: Uint8Array, from: number, head: RowHead, where: string): Omit<PackedRow, 'rollout'> {
  const { tokens, counted, advantage, logprobs, sampling, temperature, objective, observed } = head;
  let at = bytes.byteOffset + from;
  const take = (length: number): number => {
    const begin = at;
    at += aligned(length);
    return begin;
  };
  const numbers = (width: Width): Float32Array | Float64Array => {
    return numbersAt(bytes, take(counted * width), { count: counted, width });
  };
  const ids = new Int32Array(bytes.buffer, take(tokens * 4), tokens);
  const bits = new Uint8Array(bytes.buffer, take(Math.ceil(tokens / 8)), Math.ceil(tokens / 8));
  const lossMask: number[] = [];
  let ones = 0;
  for (let t = 0; t < tokens; t++) {
    const mask = (bits[t >> 3]! >> (t & 7)) & 1;
    lossMask.push(mask);
    ones += mask;
  }
  if (ones !== counted) throw damaged(where, `expected a row with ${counted} tokens that count, found ${ones}`);
  const behaviorLogprobs = logprobs && spread(lossMask, numbers(logprobs));
  const samplingLogprobs = sampling && spread(lossMask, numbers(sampling));
  const advantages =
    advantage === null ? spread(lossMask, numbers(8)) : lossMask.map((mask) => (mask === 1 ? advantage : 0));
  return {
    tokenIds: plain(ids),
    lossMask,
    ...present({ behaviorLogprobs }),
    advantages,
    ...present({ samplingLogprobs, temperature, objective, observed }),
  };
}

function numbersAt(
  { buffer }: Uint8Array,
  begin: number,
  { count, width }: { readonly count: number; readonly width: Width },
): Float32Array | Float64Array {
  return width === 4 ? new Float32Array(buffer, begin, count) : new Float64Array(buffer, begin, count);
}

/** Values of all tokens from those of the trained ones, 0 elsewhere. */
export function spread(lossMask: readonly number[], values: ArrayLike<number>): number[] {
  const all: number[] = [];
  let next = 0;
  for (const mask of lossMask) all.push(mask === 1 ? values[next++]! : 0);
  return all;
}

function plain(values: ArrayLike<number>): number[] {
  const all: number[] = [];
  for (let i = 0; i < values.length; i++) all.push(values[i]!);
  return all;
}

/** Values at the trained tokens; float32 when that loses nothing. */
export function numbersOf(values: ArrayLike<number>, places: readonly number[]): Float32Array | Float64Array {
  const short = new Float32Array(places.length);
  for (let i = 0; i < places.length; i++) {
    const value = finite(values[places[i]!]!);
    short[i] = value;
    if (short[i] !== value) return Float64Array.from(places, (t) => finite(values[t]!));
  }
  return short;
}

/** JSON has neither −0, which becomes 0, nor NaN and infinities, which must not be trained on. */
function finite(value: number): number {
  if (!Number.isFinite(value)) throw new Error(`a row of a batch has the number ${value}`);
  return value === 0 ? 0 : value;
}

function widthOf(values: Float32Array | Float64Array): Width {
  return values instanceof Float32Array ? 4 : 8;
}

function alignedBytes(columns: readonly ArrayBufferView[]): number {
  return columns.reduce((sum, { byteLength }) => sum + aligned(byteLength), 0);
}

function aligned(bytes: number): number {
  return Math.ceil(bytes / alignment) * alignment;
}
