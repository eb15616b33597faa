import { hash } from 'node:crypto';
import type { FileHandle } from 'node:fs/promises';
import path from 'node:path';
import {
  exampleOf,
  factsOf,
  isRow,
  promptIdentity,
  readRow,
  type ResultRow,
  type RowFacts,
} from '../../core/eval/result-rows.ts';
import { type RowExample, saysNoExample, tellExamples } from '../../core/eval/tell-examples.ts';
import { openRegular } from '../../host/regular-file.ts';
import { isEpisode, rowOfEpisode } from './episodes.ts';

/** A row as kept in memory: the facts for lists and sums, and the place of the rest in the file. */
export interface IndexedRow extends RowFacts {
  /** Digest of the prompt's roles and texts. */
  readonly promptDigest: string;
  readonly offset: number;
  readonly bytes: number;
}

interface ReadProgress {
  readonly bytesRead: number;
  readonly bytesTotal: number;
}

/** Bytes read at once; between two pieces the screen can be redrawn. */
const pieceBytes = 4 * 1024 * 1024;
/** Most bytes of a line: a longer one is not a row, and would have to be held whole. */
const lineBytesMax = 256 * 1024 * 1024;

/**
 * `results.jsonl` or `traces.jsonl`: facts are kept in memory, texts stay in the file until a row is shown. Lines that
 * are not rows (torn by a crash, or of another kind) are counted and skipped.
 */
export class ResultFile {
  readonly file: string;
  readonly rows: IndexedRow[] = [];
  /** Number of lines that are not rows. */
  unreadable = 0;
  /** Rows with neither an id nor a prompt; each counts as an example of its own. */
  withoutExample = 0;
  readonly #rolloutsPerExample: number | null;
  #examples: RowExample[] = [];

  /** @param rolloutsPerExample As metadata.json says; null where it does not. */
  constructor(file: string, rolloutsPerExample: number | null = null) {
    this.file = file;
    this.#rolloutsPerExample = rolloutsPerExample;
  }

  /**
   * Reads all lines from the beginning. Rows can be used as they arrive; only at the end is it known which belong to
   * one example. Calls `onRows` after each piece.
   */
  async read(onRows: (progress: ReadProgress) => void = () => undefined, signal?: AbortSignal): Promise<this> {
    const handle = await this.#open();
    try {
      const { size } = await handle.stat();
      const lines = new Lines((line, offset) => this.#add(line, offset));
      const piece = Buffer.allocUnsafe(pieceBytes);
      for (let at = 0; ;) {
        signal?.throwIfAborted();
        const { bytesRead } = await handle.read(piece, 0, pieceBytes, at);
        if (bytesRead === 0) break;
        lines.push(piece.subarray(0, bytesRead));
        at += bytesRead;
        onRows({ bytesRead: at, bytesTotal: Math.max(at, size) });
      }
      lines.end();
      this.unreadable += lines.tooLong;
      this.#settleExamples();
      return this;
    } finally {
      await handle.close();
    }
  }

  /** A complete row; null when the file has changed since it was read. */
  async row(index: number): Promise<ResultRow | null> {
    const { offset, bytes } = this.rows[index]!;
    let handle: FileHandle | null = null;
    try {
      handle = await this.#open();
      const line = Buffer.allocUnsafe(bytes);
      const { bytesRead } = await handle.read(line, 0, bytes, offset);
      const row = bytesRead === bytes ? rowIn(line) : null;
      return row && { ...readRow(row), exampleId: this.rows[index]!.exampleId };
    } finally {
      await handle?.close();
    }
  }

  /** Adds to `found` the numbers of rows whose texts contain the words, ignoring case. */
  async search(
    words: string,
    found: Set<number>,
    onProgress: (progress: number) => void = () => undefined,
    signal?: AbortSignal,
  ): Promise<void> {
    const wanted = words.toLowerCase();
    const handle = await this.#open();
    try {
      for (let from = 0; from < this.rows.length;) {
        signal?.throwIfAborted();
        const { offset } = this.rows[from]!;
        let to = from + 1;
        while (to < this.rows.length && endOf(this.rows[to]!) - offset <= pieceBytes) to += 1;
        const piece = Buffer.allocUnsafe(endOf(this.rows[to - 1]!) - offset);
        await handle.read(piece, 0, piece.length, offset);
        for (; from < to; from++) {
          const row = this.rows[from]!;
          const value = rowIn(piece.subarray(row.offset - offset, endOf(row) - offset));
          if (value !== null && textsOf(readRow(value)).some((text) => text.toLowerCase().includes(wanted)))
            found.add(from);
        }
        onProgress(from / this.rows.length);
      }
    } finally {
      await handle.close();
    }
    if (this.rows.length === 0) onProgress(1);
  }

  /** Refuses a link, since output made from these rows, such as a page, may be given to others. */
  #open(): Promise<FileHandle> {
    return openRegular(this.file, { within: [path.dirname(this.file)] });
  }

  #add(line: Buffer, offset: number): void {
    const row = rowIn(line);
    if (row === null) {
      if (line.length > 0) this.unreadable += 1;
      return;
    }
    this.#examples.push(exampleOf(row, digestOf));
    this.rows.push({ ...factsOf(row), promptDigest: digestOf(promptIdentity(row)), offset, bytes: line.length });
  }

  #settleExamples(): void {
    this.withoutExample = this.#examples.filter(saysNoExample).length;
    for (const [i, exampleId] of tellExamples(this.#examples, this.#rolloutsPerExample).entries())
      if (this.rows[i]!.exampleId !== exampleId) this.rows[i] = { ...this.rows[i]!, exampleId };
    this.#examples = [];
  }
}

function digestOf(text: string): string {
  return hash('sha256', text, 'base64').slice(0, 22);
}

function endOf({ offset, bytes }: IndexedRow): number {
  return offset + bytes;
}

/** Texts of a row that a search looks through. */
function textsOf({ prompt, completion, answer, error }: ResultRow): string[] {
  const messages = [...prompt, ...completion].flatMap(({ text, reasoning, calls }) => [
    text,
    reasoning,
    ...calls.map(({ name, arguments: args }) => `${name} ${args}`),
  ]);
  return [...messages, answer ?? '', error?.message ?? ''];
}

function rowIn(line: Buffer): { readonly [key: string]: unknown } | null {
  try {
    const value: unknown = JSON.parse(line.toString('utf8'));
    return isEpisode(value) ? rowOfEpisode(value) : isRow(value) ? value : null;
  } catch {
    return null; // counted as unreadable
  }
}

/** Splits pieces into lines; drops one that is longer than a row may be. */
class Lines {
  readonly #take: (line: Buffer, offset: number) => void;
  #begun: Buffer[] = [];
  #begunBytes = 0;
  /** Offset of the next line. */
  #offset = 0;
  tooLong = 0;

  constructor(take: (line: Buffer, offset: number) => void) {
    this.#take = take;
  }

  push(piece: Buffer): void {
    let from = 0;
    for (let end = piece.indexOf(0x0a); end >= 0; end = piece.indexOf(0x0a, from)) {
      this.#finish(piece.subarray(from, end));
      this.#offset += 1;
      from = end + 1;
    }
    const rest = piece.subarray(from);
    this.#begunBytes += rest.length;
    // A copy: the piece is read into again.
    if (this.#begunBytes <= lineBytesMax) this.#begun.push(Buffer.from(rest));
    else this.#begun = [];
  }

  /** A last line without a line break may be complete. */
  end(): void {
    if (this.#begunBytes > 0) this.#finish(Buffer.alloc(0));
  }

  #finish(last: Buffer): void {
    const bytes = this.#begunBytes + last.length;
    if (bytes > lineBytesMax) this.tooLong += 1;
    else this.#take(this.#begun.length === 0 ? last : Buffer.concat([...this.#begun, last]), this.#offset);
    this.#offset += bytes;
    [this.#begun, this.#begunBytes] = [[], 0];
  }
}
