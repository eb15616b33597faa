import { batchPartBytesMax, batchPartsHeld } from '../../core/limits.ts';
import { type PackedRow, type RowFacts, type RowSource, sharedTokens, tokensIn } from '../../core/rl/learning/batch.ts';
import type { ObjectRef, PackedBatch, StepPlan, StoredRows, TaughtRows } from '../../core/rl/run-state.ts';
import { damaged, encodeJson, isRecord, type Shape } from '../../store/objects.ts';
import { sha256 } from '../../store/file-store.ts';
import type { Store } from '../../store/index.ts';
import {
  decodePart,
  decodeTaught,
  type EncodedRow,
  encodePart,
  encodeRow,
  type OpenedPart,
  spread,
} from './batch-parts.ts';
import { layout } from '../layout.ts';
import { isRef } from '../forms/record-shapes.ts';
import { decodeOlderPart, decodeOlderTaught, olderPacked, type OlderPacked } from './older-batches.ts';
import { type LineagePlace, readJson, readRows, type RunPlace, storeOf } from '../run-access.ts';
import { encodeStored } from '../forms/stored-forms.ts';

/**
 * Writes the rows of a batch part by part. Parts are named by content: packing the same rows again finds them, and
 * parts left by a dead attempt belong to the next batch or to none.
 */
export class BatchWriter {
  readonly #store: Store;
  readonly #place: { readonly lineage: string; readonly step: number };
  readonly #partBytesMax: number;
  readonly #parts: ObjectRef[] = [];
  readonly #tokens: number[] = [];
  readonly #counted: number[] = [];
  readonly #rollouts: number[] = [];
  readonly #untold: number[] = [];
  readonly #shared: number[] = [];
  readonly #distilled: number[] = [];
  readonly #observed: number[] = [];
  #before: PackedRow | undefined;
  #open: EncodedRow[] = [];
  #openBytes = 0;

  constructor(run: LineagePlace, step: number, { partBytesMax = batchPartBytesMax } = {}) {
    this.#store = storeOf(run);
    this.#place = { lineage: run.lineage, step };
    this.#partBytesMax = partBytesMax;
  }

  /** `rollout`: index of the row's rollout in the batch. */
  async add(sample: PackedRow, rollout: number): Promise<void> {
    const row = encodeRow(sample, rollout);
    if (this.#open.length > 0 && this.#openBytes + row.bytes > this.#partBytesMax) await this.#close();
    this.#open.push(row);
    this.#openBytes += row.bytes;
    const { counted, logprobs, objective, observed = [] } = row.head;
    if (logprobs === undefined && counted > 0) this.#untold.push(this.#tokens.length);
    if (objective) this.#distilled.push(this.#tokens.length);
    this.#observed.push(tokensIn(observed));
    this.#tokens.push(row.head.tokens);
    this.#counted.push(counted);
    this.#rollouts.push(rollout);
    this.#shared.push(sharedTokens(this.#before, sample));
    this.#before = sample;
  }

  /** `of`: number of the batch's rollouts, including those without a row. */
  async end({ of }: { readonly of: number }): Promise<StoredRows> {
    if (this.#open.length > 0) await this.#close();
    const isEachOne = this.#rollouts.length === of && this.#rollouts.every((rollout, row) => rollout === row);
    return {
      parts: this.#parts,
      tokens: this.#tokens,
      counted: this.#counted,
      ...(this.#untold.length === 0 ? {} : { untold: this.#untold }),
      ...(this.#shared.every((tokens) => tokens === 0) ? {} : { shared: this.#shared }),
      ...(this.#distilled.length === 0 ? {} : { distilled: this.#distilled }),
      ...(this.#observed.every((tokens) => tokens === 0) ? {} : { observed: this.#observed }),
      ...(isEachOne ? {} : { rollouts: { indices: this.#rollouts, of } }),
    };
  }

  async #close(): Promise<void> {
    const bytes = encodePart(this.#open);
    const count = this.#open.length;
    [this.#open, this.#openBytes] = [[], 0];
    const key = layout.batchPart(this.#place.lineage, this.#place.step, sha256(bytes));
    this.#parts.push({ ...(await this.#store.put(key, bytes)), count });
  }
}

/**
 * Named by its rows, so that another batch for the same step (after a refusal) never replaces one that a plan refers
 * to.
 */
export async function putPacked(run: LineagePlace, step: number, packed: PackedBatch): Promise<ObjectRef> {
  const key = layout.packed(run.lineage, step, sha256(encodeJson(packed.rows)));
  return { ...(await storeOf(run).put(key, encodeStored(key, packed))), count: packed.rows.tokens.length };
}

export async function readPacked(run: RunPlace, ref: ObjectRef): Promise<PackedBatch> {
  const packed = await readJson<PackedBatch | OlderPacked>(run, ref, packedShape);
  return 'rows' in packed ? packed : olderPacked(packed, await readRows(run, packed.batch));
}

const packedShape: Shape = ({ rows, batch, metrics }) => ({
  'rows in parts, with the tokens of each': (isRecord(rows) && areRows(rows)) || (rows === undefined && isRef(batch)),
  metrics: isRecord(metrics),
});

function areRows(written: Record<string, unknown>): boolean {
  const { parts, tokens, counted, rollouts, shared, observed, untold = [], distilled = [] } = written;
  if (!Array.isArray(parts) || !parts.every(isPart) || !areCounts(tokens)) return false;
  const rows = tokens.length;
  const areOf = (value: unknown): boolean => areCounts(value) && value.length === rows;
  return (
    parts.reduce((sum, { count }) => sum + count, 0) === rows &&
    areOf(counted) &&
    areCounts(untold) &&
    areCounts(distilled) &&
    (observed === undefined || areOf(observed)) &&
    (shared === undefined || areOf(shared)) &&
    (rollouts === undefined || (isRecord(rollouts) && areOf(rollouts['indices']) && isCount(rollouts['of'])))
  );
}

/** Which parts a teacher's log probabilities are in. */
async function readTaught(run: RunPlace, ref: ObjectRef): Promise<TaughtRows> {
  if (isOlderRows(ref)) return { parts: [ref], rowsOfPart: ref.count ?? Number.MAX_SAFE_INTEGER };
  return readJson<TaughtRows>(run, ref, ({ parts, rowsOfPart }) => ({
    'parts, and how many rows are in each': Array.isArray(parts) && parts.every(isRef) && isCount(rowsOfPart),
  }));
}

/** Objects with the training data of a plan, besides the plan itself and its packed batch. */
export async function partsOfPlan(run: RunPlace, { packed, taught }: StepPlan): Promise<ObjectRef[]> {
  const { rows } = await readPacked(run, packed);
  return [...rows.parts, ...(taught ? (await readTaught(run, taught.logprobs)).parts : [])];
}

/** A batch in the store. */
export interface StoredBatch extends RowSource<PackedRow> {
  /** Rows without the policy's log probabilities, since the server reported none. */
  readonly untold: readonly number[];
}

/** Rows of a plan, with the teacher's values if it has any. Read on demand. */
export async function openBatch(
  run: RunPlace,
  { packed, taught }: Pick<StepPlan, 'packed' | 'taught'>,
): Promise<StoredBatch> {
  const store = storeOf(run);
  const { rows } = await readPacked(run, packed);
  const parts = new HeldParts(store, rows.parts, (bytes, ref, where) =>
    isOlderRows(ref) ? decodeOlderPart(bytes, where) : decodePart(bytes, where),
  );
  const said = taught && (await readTaught(run, taught.logprobs));
  const taughtParts =
    said &&
    new HeldParts(store, said.parts, (bytes, ref, where) =>
      isOlderRows(ref) ? decodeOlderTaught(bytes, where) : decodeTaught(bytes, where),
    );
  const placeOf = rows.parts.flatMap(({ count = 0 }, part) =>
    Array.from({ length: count }, (_, place) => ({ part, place })),
  );
  const read = async (row: number): Promise<PackedRow> => {
    const { part, place } = placeOf[row]!;
    const opened = await parts.at(part);
    requireHead(
      opened,
      place,
      { tokens: rows.tokens[row]!, counted: rows.counted[row]! },
      store.uri + rows.parts[part]!.key,
    );
    const sample = opened.row(place);
    const { rollouts } = rows;
    return {
      ...sample,
      ...(rollouts ? { rollout: { index: rollouts.indices[row]!, of: rollouts.of } } : {}),
      ...(taughtParts ? { teacherLogprobs: await taughtRow(row, sample) } : {}),
    };
  };
  const taughtRow = async (row: number, { lossMask }: Pick<PackedRow, 'lossMask'>): Promise<number[]> => {
    const part = Math.floor(row / said!.rowsOfPart);
    const values = (await taughtParts!.at(part))[row % said!.rowsOfPart];
    if (isOlderRows(said!.parts[part]!) && values?.length === lossMask.length) return [...values];
    if (values && values.length === rows.counted[row]) return spread(lossMask, values);
    const where = store.uri + said!.parts[part]!.key;
    throw damaged(where, `expected ${rows.counted[row]} numbers of row ${row}, found ${values?.length ?? 'none'}`);
  };
  return {
    rows: factsOfRows(rows),
    untold: rows.untold ?? [],
    async read(places) {
      const samples: PackedRow[] = [];
      for (const place of places) samples.push(await read(place));
      return samples;
    },
  };
}

function factsOfRows({ tokens, counted, rollouts, shared, distilled, observed }: StoredRows): RowFacts[] {
  const isDistilled = new Set(distilled);
  return tokens.map((count, row) => ({
    tokens: count,
    counted: counted[row]!,
    weight: counted[row]!,
    ...(shared ? { shared: shared[row]! } : {}),
    ...(isDistilled.has(row) ? { objective: 'ref_kl' } : {}),
    ...(observed && observed[row]! > 0 ? { observed: observed[row]! } : {}),
    ...(rollouts ? { rollout: { index: rollouts.indices[row]!, of: rollouts.of } } : {}),
  }));
}

function requireHead(
  { heads }: OpenedPart,
  place: number,
  expected: Record<'tokens' | 'counted', number>,
  where: string,
): void {
  const head = heads[place];
  if (head?.tokens === expected.tokens && head.counted === expected.counted) return;
  const found = head ? `${head.tokens}, of which ${head.counted} count` : 'none';
  throw damaged(
    where,
    `expected a row ${place} of ${expected.tokens} tokens, of which ${expected.counted} count; found ${found}`,
  );
}

/** The parts that were read last, whole: a row is a piece of one. */
class HeldParts<Part> {
  readonly #store: Store;
  readonly #refs: readonly ObjectRef[];
  readonly #decode: (bytes: Uint8Array, ref: ObjectRef, where: string) => Part;
  /** Cached parts, least recently used first. */
  readonly #held = new Map<number, Promise<Part>>();

  constructor(
    store: Store,
    refs: readonly ObjectRef[],
    decode: (bytes: Uint8Array, ref: ObjectRef, where: string) => Part,
  ) {
    this.#store = store;
    this.#refs = refs;
    this.#decode = decode;
  }

  /** Throws `CheckpointDamaged` with the part's name and expected sha256 when its bytes differ. */
  at(part: number): Promise<Part> {
    const found = this.#held.get(part) ?? this.#read(this.#refs[part]!);
    this.#held.delete(part);
    this.#held.set(part, found);
    found.catch(() => this.#held.delete(part)); // a failed read is repeated by the next caller
    if (this.#held.size > batchPartsHeld) this.#held.delete(this.#held.keys().next().value!);
    return found;
  }

  async #read(ref: ObjectRef): Promise<Part> {
    return this.#decode(await this.#store.get(ref), ref, this.#store.uri + ref.key);
  }
}

/** Rows as JSON lines, the form of batches until 26 November 2026. */
function isOlderRows({ key }: ObjectRef): boolean {
  return key.endsWith('.jsonl');
}

function isPart(value: unknown): value is ObjectRef & { readonly count: number } {
  return isRef(value) && isCount(value.count);
}

function areCounts(value: unknown): value is number[] {
  return Array.isArray(value) && value.every(isCount);
}

function isCount(value: unknown): boolean {
  return Number.isSafeInteger(value) && Number(value) >= 0;
}
