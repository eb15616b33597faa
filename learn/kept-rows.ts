import { keptRowsBytesMax } from '../core/limits.ts';
import { decodeRow } from '../store/objects.ts';

/** Rows of a dataset: its verified bytes are kept, and rows are decoded on demand. */
export class KeptRows<Row extends object> {
  readonly #bytes: Uint8Array;
  readonly #key: string;
  /** Byte offset of each row's line, followed by the end of the last. */
  readonly #begins: Uint32Array;

  /** JSON lines from `encodeRows`; `key` is their source. */
  constructor(bytes: Uint8Array, key: string) {
    const begins = [0];
    for (let end = bytes.indexOf(newline); end >= 0; end = bytes.indexOf(newline, end + 1)) begins.push(end + 1);
    if (begins.at(-1) !== bytes.byteLength) begins.push(bytes.byteLength);
    this.#begins = Uint32Array.from(begins);
    this.#bytes = bytes;
    this.#key = key;
  }

  get length(): number {
    return this.#begins.length - 1;
  }

  get sizeBytes(): number {
    return this.#bytes.byteLength + this.#begins.byteLength;
  }

  /** Throws `CheckpointDamaged` for a line that is no JSON object. */
  row(index: number): Row {
    const line = this.#bytes.subarray(this.#begins[index], this.#begins[index + 1]);
    return decodeRow<Row>(line, `${this.#key}, line ${index + 1}`);
  }
}

const newline = 0x0a;

/** Keyed by the sha256 of their bytes, least recently used first. */
const kept = new Map<string, KeptRows<object>>();

/**
 * Rows with this sha256, read and verified unless this process has them. The newest are always kept, others while all
 * take no more than `keptRowsBytesMax`: a step that draws a few rows of many need not read or decode the others again.
 */
export async function keptRows<Row extends object>(
  digest: string,
  read: () => Promise<KeptRows<Row>>,
): Promise<KeptRows<Row>> {
  const rows = (kept.get(digest) as KeptRows<Row> | undefined) ?? (await read());
  kept.delete(digest);
  kept.set(digest, rows);
  let heldBytes = [...kept.values()].reduce((total, { sizeBytes }) => total + sizeBytes, 0);
  for (const [other, { sizeBytes }] of kept) {
    if (heldBytes <= keptRowsBytesMax || other === digest) break;
    kept.delete(other);
    heldBytes -= sizeBytes;
  }
  return rows;
}
