import { jsonOrNull } from '../../core/json-or-null.ts';
import { RatchetError } from '../../core/errors.ts';
import type { RolloutLabel } from '../../core/rl/rollout/rollout-label.ts';
import { isRecord } from '../../store/objects.ts';

/** Index entry of one rollout. */
export interface IndexedRollout extends RolloutLabel {
  /** The object that its group lies in, and the row of it there. */
  readonly object: string;
  readonly line: number;
}

/** Number columns with their bytes per value, in the order stored. */
const columnTypes = {
  step: Uint32Array,
  group: Uint32Array,
  exampleId: Uint32Array,
  reward: Float32Array,
  version: Uint32Array,
  versionEnd: Uint32Array,
  tokens: Uint32Array,
  object: Uint32Array,
  line: Uint32Array,
  index: Uint16Array,
  environment: Uint16Array,
  outcome: Uint16Array,
  end: Uint16Array,
  turns: Uint16Array,
} as const;
type ColumnName = keyof typeof columnTypes;
type Columns = { readonly [name in ColumnName]: InstanceType<(typeof columnTypes)[name]> };
const columnNames = Object.keys(columnTypes) as ColumnName[];

/** Columns that hold places in a list of texts. */
const dictionaryNames = ['environment', 'outcome', 'end', 'object'] as const;
type DictionaryName = (typeof dictionaryNames)[number];

/**
 * Place of a segment in the text object beside a block: each is compressed by itself, and holds the rows from `row` on.
 */
export interface Segment {
  readonly row: number;
  readonly at: number;
  readonly bytes: number;
}

/** Rollouts of some steps of one lineage as columns, by (step, group, index). */
export interface Block {
  readonly rows: number;
  readonly columns: Columns;
  readonly dictionaries: Readonly<Record<DictionaryName, readonly string[]>>;
  readonly segments: readonly Segment[];
}

const magic = 'ratchetI';
const prefixBytes = magic.length + 4;
const alignment = 8;
const aligned = (bytes: number): number => Math.ceil(bytes / alignment) * alignment;

/** Rows are encoded in the order given. */
export function blockOf(rows: readonly Omit<IndexedRollout, 'lineage'>[], segments: readonly Segment[]): Block {
  const dictionaries = { environment: [], outcome: [], end: [], object: [] } as Record<DictionaryName, string[]>;
  const places = new Map<string, number>();
  const placeOf = (name: DictionaryName, text: string): number => {
    const key = `${name} ${text}`;
    const found = places.get(key) ?? dictionaries[name].push(text) - 1;
    places.set(key, found);
    return found;
  };
  const columns = emptyColumns(rows.length);
  for (const [i, row] of rows.entries()) {
    for (const name of columnNames) {
      const value = row[name];
      columns[name][i] = typeof value === 'string' ? placeOf(name as DictionaryName, value) : (value ?? Number.NaN);
    }
  }
  return { rows: rows.length, columns, dictionaries, segments };
}

/** Joins blocks of consecutive steps; their segments follow one another as in the joined text object. */
export function joinBlocks(blocks: readonly (Block & { readonly textBytes: number })[]): Block {
  const columns = emptyColumns(blocks.reduce((sum, { rows }) => sum + rows, 0));
  const dictionaries = { environment: [], outcome: [], end: [], object: [] } as Record<DictionaryName, string[]>;
  const segments: Segment[] = [];
  let [row, at] = [0, 0];
  for (const block of blocks) {
    for (const name of columnNames) columns[name].set(block.columns[name], row);
    for (const name of dictionaryNames) {
      const all = dictionaries[name];
      const moved = block.dictionaries[name].map((text) => {
        const found = all.indexOf(text);
        return found < 0 ? all.push(text) - 1 : found;
      });
      const column = columns[name];
      for (let i = row; i < row + block.rows; i++) column[i] = moved[column[i]!]!;
    }
    segments.push(...block.segments.map((one) => ({ row: one.row + row, at: one.at + at, bytes: one.bytes })));
    row += block.rows;
    at += block.textBytes;
  }
  return { rows: row, columns, dictionaries, segments };
}

export function encodeBlock({ rows, columns, dictionaries, segments }: Block): Uint8Array {
  const head = JSON.stringify({
    schemaVersion: 1,
    rows,
    columns: columnNames,
    dictionaries,
    segments: segments.map(({ row, at, bytes }) => [row, at, bytes]),
  });
  const dataAt = aligned(prefixBytes + Buffer.byteLength(head));
  const size = columnNames.reduce((sum, name) => sum + aligned(columns[name].byteLength), dataAt);
  const all = Buffer.alloc(size);
  all.fill(' ', 0, dataAt);
  all.write(magic, 0, 'latin1');
  all.writeUInt32LE(dataAt - prefixBytes, magic.length);
  all.write(head, prefixBytes, 'utf8');
  let at = dataAt;
  for (const name of columnNames) {
    const { buffer, byteOffset, byteLength } = columns[name];
    all.set(new Uint8Array(buffer, byteOffset, byteLength), at);
    at += aligned(byteLength);
  }
  return all;
}

/** Error for an index that cannot be read. Nothing is lost: it is rebuilt from the run's own records. */
export function spoiledIndex(where: string, what: string, cause?: unknown): RatchetError {
  const run = /([^/]+)\/(?:lineages\/[^/]+\/)?index\/rollouts\//.exec(where)?.[1] ?? 'RUN';
  return new RatchetError(
    'CheckpointDamaged',
    `${where}: ${what}. It is made anew by npx ratchet-rl index ${run}`,
    cause === undefined ? {} : { cause },
  );
}

/** Throws `CheckpointDamaged`, with `where`, for anything but a block. Columns are views of the given bytes. */
export function decodeBlock(given: Uint8Array, where: string): Block {
  const bytes = given.byteOffset % alignment === 0 ? given : new Uint8Array(given);
  const view = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (view.length < prefixBytes || view.toString('latin1', 0, magic.length) !== magic)
    throw spoiledIndex(where, 'expected a block of the index of rollouts, found other bytes');
  const dataAt = prefixBytes + view.readUInt32LE(magic.length);
  const head = jsonOrNull(view.toString('utf8', prefixBytes, dataAt));
  if (!isHead(head)) throw spoiledIndex(where, 'expected the head of a block of the index, found none');
  const { rows, dictionaries } = head;
  let at = dataAt;
  const columns = emptyColumns(0) as Record<ColumnName, Columns[ColumnName]>;
  for (const name of columnNames) {
    const type = columnTypes[name];
    const length = rows * type.BYTES_PER_ELEMENT;
    if (at + length > view.length) throw spoiledIndex(where, `expected ${rows} rows by its head, found fewer`);
    columns[name] = new type(bytes.buffer as ArrayBuffer, bytes.byteOffset + at, rows);
    at += aligned(length);
  }
  const segments = head.segments.map(([row, from, length]) => ({ row, at: from, bytes: length }));
  return { rows, columns: columns as Columns, dictionaries, segments };
}

/** Entry of one row of a block. */
export function rowOf({ columns, dictionaries }: Block, lineage: string, row: number): IndexedRollout {
  const text = (name: DictionaryName): string => dictionaries[name][columns[name][row]!] ?? '';
  const reward = columns.reward[row]!;
  return {
    lineage,
    step: columns.step[row]!,
    group: columns.group[row]!,
    index: columns.index[row]!,
    environment: text('environment'),
    exampleId: columns.exampleId[row]!,
    outcome: text('outcome'),
    end: text('end'),
    reward: Number.isNaN(reward) ? null : reward,
    version: columns.version[row]!,
    versionEnd: columns.versionEnd[row]!,
    tokens: columns.tokens[row]!,
    turns: columns.turns[row]!,
    object: text('object'),
    line: columns.line[row]!,
  };
}

interface Head {
  readonly rows: number;
  readonly dictionaries: Block['dictionaries'];
  readonly segments: readonly (readonly [row: number, at: number, bytes: number])[];
}

function isHead(head: unknown): head is Head {
  if (!isRecord(head) || head['schemaVersion'] !== 1 || !Number.isSafeInteger(head['rows'])) return false;
  const { columns, dictionaries, segments } = head;
  return (
    Array.isArray(columns) &&
    columns.join() === columnNames.join() &&
    isRecord(dictionaries) &&
    dictionaryNames.every((name) => Array.isArray(dictionaries[name])) &&
    Array.isArray(segments) &&
    segments.every((segment) => Array.isArray(segment) && segment.length === 3)
  );
}

function emptyColumns(rows: number): Columns {
  return Object.fromEntries(columnNames.map((name) => [name, new columnTypes[name](rows)])) as unknown as Columns;
}
