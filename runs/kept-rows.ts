import { keptRowsBytesMax } from '../core/limits.ts';
import { decodeRow } from '../backends/store/objects.ts';

/** Rows of a dataset: its bytes are held as they were verified, and a row is decoded when it is asked for. */
export class KeptRows<Row extends object> {
  readonly #bytes: Uint8Array;
  readonly #key: string;
  /** Where the line of each row begins, and behind the last where the bytes end. */
  readonly #begins: Uint32Array;

  /** JSON lines, as `encodeRows` makes them; `key` is where they are from. */
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

/** By the sha256 of their bytes, the one that was used last behind the others. */
const kept = new Map<string, KeptRows<object>>();

/**
 * The rows with this sha256, read and compared where this process does not hold them. The newest are held, the others while all take no more
 * than `keptRowsBytesMax`: a step that draws a few rows of many neither reads nor decodes the others again.
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
