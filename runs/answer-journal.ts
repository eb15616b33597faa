import { setTimeout as delay } from 'node:timers/promises';
import PQueue from 'p-queue';
import type { EvaluationPlace } from '../core/eval/evaluation.ts';
import type { StoredPromptSearch } from '../core/gepa/prompt-search.ts';
import type { Texts } from '../core/gepa/search-state.ts';
import { RatchetError } from '../core/errors.ts';
import { failpoint } from '../backends/failpoints.ts';
import type { Store } from '../backends/store/index.ts';
import { decodeRows, encodeRows } from '../backends/store/objects.ts';
import { storeOf } from './run-access.ts';
import {
  type AnswerRow,
  isReflected,
  isScored,
  type PlayedRow,
  type ReflectedRow,
  type ScoredRow,
  searchKeys,
  textName,
} from './search-store.ts';

/** What comes within so long is stored together. */
const gatherMs = 3;
const readsAtOnce = 32;
const againMs = { first: 200, most: 5_000 };

/**
 * What a search's requests were answered with, under the requests' ids, in parts: a part holds what came since the one before, whatever
 * it belongs to, so that a hundred answers at once cost one write. Of two rows that answer the same the first counts.
 */
export class AnswerJournal {
  readonly #store: Store;
  readonly #prefix: string;
  readonly #signal: AbortSignal;
  readonly #scored = new Map<string, ScoredRow>();
  readonly #played = new Map<string, PlayedRow>();
  readonly #reflected = new Map<string, ReflectedRow>();
  readonly #texts: Map<string, string>;
  /** Parts that were there or were begun. */
  #parts: number;
  #fresh: AnswerRow[] = [];
  #gathering: Promise<void> | null = null;

  private constructor(
    store: Store,
    prefix: string,
    stored: { readonly parts: number; readonly rows: readonly AnswerRow[] },
    { startTexts, signal }: { readonly startTexts: Texts; readonly signal: AbortSignal },
  ) {
    this.#store = store;
    this.#prefix = prefix;
    this.#parts = stored.parts;
    this.#signal = signal;
    this.#texts = new Map(Object.values(startTexts).map((text) => [textName(text), text]));
    for (const row of stored.rows) this.#remember(row);
  }

  static async open(
    place: EvaluationPlace,
    { startTexts }: StoredPromptSearch,
    signal = new AbortController().signal,
  ): Promise<AnswerJournal> {
    const store = storeOf(place);
    const prefix = `${searchKeys.answers(place)}part_`;
    const numbers = (await store.list(prefix)).map((key) => Number.parseInt(key.slice(prefix.length), 10));
    numbers.sort((a, b) => a - b);
    const read = async (number: number) => {
      const key = `${prefix}${number}.jsonl`;
      return decodeRows<AnswerRow>((await store.read(key)) ?? Buffer.of(), key);
    };
    const queue = new PQueue({ concurrency: readsAtOnce });
    const rows = await queue.addAll(numbers.map((number) => () => read(number)));
    const stored = { parts: numbers.at(-1) ?? 0, rows: rows.flat() };
    return new AnswerJournal(store, prefix, stored, { startTexts, signal });
  }

  /** Of an example of a request: its score, or the rollout that waits for one. */
  rowOf(request: string, index: number): ScoredRow | PlayedRow | undefined {
    const key = `${request}#${index}`;
    return this.#scored.get(key) ?? this.#played.get(key);
  }

  scoredRow(request: string, index: number): ScoredRow {
    const row = this.#scored.get(`${request}#${index}`);
    if (row !== undefined) return row;
    throw this.#lost(`the answer to request ${request}`);
  }

  reflectionOf(request: string): ReflectedRow | undefined {
    return this.#reflected.get(request);
  }

  /** The text that the search knows by this name. */
  text(name: string): string {
    const text = this.#texts.get(name);
    if (text !== undefined) return text;
    throw this.#lost(`the text ${name}`);
  }

  texts(names: Texts): Texts {
    return Object.fromEntries(Object.entries(names).map(([component, name]) => [component, this.text(name)]));
  }

  /** Durable when it returns. While the store is away or full it is kept here: what it cost is paid. */
  async add(row: AnswerRow): Promise<void> {
    this.#remember(row);
    this.#fresh.push(row);
    this.#gathering ??= this.#gather();
    await this.#gathering;
  }

  /** Each part by itself: who comes late does not wait for the one before. */
  async #gather(): Promise<void> {
    await delay(gatherMs);
    const rows = this.#fresh;
    this.#fresh = [];
    this.#gathering = null;
    await this.#write(encodeRows(rows));
  }

  /** Asks again, longer and longer apart, while the store is away or full. */
  async #write(bytes: Uint8Array): Promise<void> {
    for (let waitMs = againMs.first; ;) {
      try {
        this.#parts += 1;
        if ((await this.#store.putIfAbsent(`${this.#prefix}${this.#parts}.jsonl`, bytes)).stored) break;
      } catch (error) {
        const isWeather = error instanceof RatchetError && ['StoreFull', 'StoreUnavailable'].includes(error.code);
        if (!isWeather || this.#signal.aborted) throw error;
        await delay(waitMs, undefined, { signal: this.#signal }).catch(() => undefined);
        waitMs = Math.min(waitMs * 2, againMs.most);
      }
    }
    await failpoint('gepa.part');
  }

  #remember(row: AnswerRow): void {
    if (isReflected(row)) {
      if (this.#reflected.has(row.request)) return;
      this.#reflected.set(row.request, row);
      if (row.text !== null) this.#texts.set(textName(row.text), row.text);
      return;
    }
    const key = `${row.request}#${row.index}`;
    if (isScored(row)) {
      if (!this.#scored.has(key)) this.#scored.set(key, row);
    } else if (!this.#played.has(key)) this.#played.set(key, row);
  }

  #lost(what: string): RatchetError {
    return new RatchetError(
      'CheckpointDamaged',
      `${what} is missing from ${this.#store.uri}search/answers, and the search relies on it. Restore the files, or search anew (--fresh).`,
    );
  }
}
