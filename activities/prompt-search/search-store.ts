import type { ExampleRef, PromptSearchHandle, StoredPromptSearch } from '../../core/gepa/prompt-search.ts';
import type { ReflectionRecord } from '../../core/gepa/reflection-prompt.ts';
import type { Texts } from '../../core/gepa/search-state.ts';
import type { EvaluationPlace } from '../../core/eval/evaluation.ts';
import { RatchetError } from '../../core/errors.ts';
import type { Outcome, Rollout } from '../../core/rl/rollout.ts';
import { sha256 } from '../../backends/store/file-store.ts';
import type { Store } from '../../backends/store/index.ts';
import { readJson } from '../run-access.ts';

/** Where the parts of a search lie, below its place's prefix. */
export const searchKeys = {
  search: ({ prefix }: EvaluationPlace) => `${prefix}search/search.json`,
  /** What came of the whole. */
  summary: ({ prefix }: EvaluationPlace) => `${prefix}search/summary.json`,
  /** All that belongs to one request of the search, named after it. */
  request: ({ prefix }: EvaluationPlace, id: string) => `${prefix}search/requests/${encodeURIComponent(id)}/`,
  reflection: (place: EvaluationPlace, id: string) => `${searchKeys.request(place, id)}answer.json`,
  text: ({ prefix }: EvaluationPlace, name: string) => `${prefix}search/texts/${name}.txt`,
} as const;

/** A rollout of a request with its score; of a request whose traces are asked for later, with what a reflection is told of it. */
export interface ScoredRow {
  /** Of the request's examples. */
  readonly index: number;
  readonly example: ExampleRef;
  readonly outcome: Outcome;
  /** null: infrastructure. */
  readonly reward: number | null;
  readonly metrics: Readonly<Record<string, number>>;
  readonly error?: string;
  readonly record?: ReflectionRecord;
}

/** One that waits for its score. */
export interface PlayedRow {
  readonly index: number;
  readonly rollout: Rollout;
}

export type RequestRow = ScoredRow | PlayedRow;

/** What a reflection gave. */
export interface StoredReflection {
  /** As the model wrote it. */
  readonly answer: string;
  /** The new text in it; null: there is none. */
  readonly text: string | null;
  readonly usage: { readonly promptTokens: number; readonly completionTokens: number } | null;
}

export async function storedSearch({ place, spec }: PromptSearchHandle): Promise<StoredPromptSearch> {
  return readJson<StoredPromptSearch>(place, spec);
}

/** Texts by the names that a search knows them by. They are few and small, and kept in memory. */
export class SearchTexts {
  readonly #store: Store;
  readonly #place: EvaluationPlace;
  readonly #known = new Map<string, string>();

  constructor(store: Store, place: EvaluationPlace) {
    this.#store = store;
    this.#place = place;
  }

  /** Stores a text and gives its name: the same for the same text. Durable when it returns. */
  async put(text: string): Promise<string> {
    const bytes = Buffer.from(text);
    const name = sha256(bytes).slice(0, 16);
    if (this.#known.get(name) !== text) await this.#store.put(searchKeys.text(this.#place, name), bytes);
    this.#known.set(name, text);
    return name;
  }

  async get(name: string): Promise<string> {
    const known = this.#known.get(name);
    if (known !== undefined) return known;
    const bytes = await this.#store.read(searchKeys.text(this.#place, name));
    if (bytes === null) throw lost(this.#store.uri, searchKeys.text(this.#place, name));
    const text = Buffer.from(bytes).toString('utf8');
    this.#known.set(name, text);
    return text;
  }

  async all(texts: Texts): Promise<Texts> {
    const pairs = Object.entries(texts).map(async ([component, name]) => [component, await this.get(name)] as const);
    return Object.fromEntries(await Promise.all(pairs));
  }
}

export function lost(uri: string, key: string): RatchetError {
  return new RatchetError(
    'CheckpointDamaged',
    `${key} is missing from ${uri}, and the search relies on it. Restore the file, or search anew (--fresh).`,
  );
}
