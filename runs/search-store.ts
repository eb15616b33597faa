import type { EvaluationPlace } from '../core/eval/evaluation.ts';
import type { ExampleRef, PromptSearchHandle, StoredPromptSearch } from '../core/gepa/prompt-search.ts';
import type { ReflectionRecord } from '../core/gepa/reflection-prompt.ts';
import { tokensOf } from '../core/rl/results.ts';
import type { Outcome, Rollout, Turn } from '../core/rl/rollout.ts';
import { sha256 } from '../backends/store/file-store.ts';
import { showStoreUri } from '../backends/store/index.ts';
import { readJson, storeOf } from './run-access.ts';

/** Where the parts of a search lie, below its place's prefix. */
export const searchKeys = {
  search: ({ prefix }: EvaluationPlace) => `${prefix}search/search.json`,
  /** What came of the whole. */
  summary: ({ prefix }: EvaluationPlace) => `${prefix}search/summary.json`,
  /** What requests were answered with, a row each. */
  answers: ({ prefix }: EvaluationPlace) => `${prefix}search/answers/`,
} as const;

export interface TokenUsage {
  readonly promptTokens: number;
  readonly completionTokens: number;
}

/** A rollout of a request with its score; of a request whose traces are asked for later, with what a reflection is told of it. */
export interface ScoredRow {
  readonly request: string;
  /** Of the request's examples. */
  readonly index: number;
  readonly example: ExampleRef;
  readonly outcome: Outcome;
  /** null: infrastructure. */
  readonly reward: number | null;
  readonly metrics: Readonly<Record<string, number>>;
  readonly error?: string;
  readonly record?: ReflectionRecord;
  /** Tokens that the rollout took; missing in what was played by a Ratchet that did not count them. */
  readonly usage?: TokenUsage;
}

/** One that waits for its score. */
export interface PlayedRow {
  readonly request: string;
  readonly index: number;
  readonly rollout: Rollout;
}

/** Finished turns of a rollout that was broken off, in order. */
export interface TurnsRow {
  readonly request: string;
  readonly index: number;
  readonly turns: readonly Turn[];
}

/** What a reflection gave. */
export interface ReflectedRow {
  readonly request: string;
  /** As the model wrote it. */
  readonly answer: string;
  /** The new text in it; null: there is none. */
  readonly text: string | null;
  readonly usage: TokenUsage | null;
}

/** Tokens that a rollout took, by what was stored of it. */
export function usageOf({ turns }: Rollout): TokenUsage {
  const counts = turns.map(tokensOf);
  return {
    promptTokens: counts.reduce((sum, { prompt }) => sum + prompt, 0),
    completionTokens: counts.reduce((sum, { completion }) => sum + completion, 0),
  };
}

export type AnswerRow = ScoredRow | PlayedRow | TurnsRow | ReflectedRow;

export function isScored(row: AnswerRow): row is ScoredRow {
  return 'reward' in row;
}

export function isBrokenOff(row: AnswerRow): row is TurnsRow {
  return 'turns' in row;
}

export function isReflected(row: AnswerRow): row is ReflectedRow {
  return 'answer' in row;
}

export async function storedSearch({ place, spec }: PromptSearchHandle): Promise<StoredPromptSearch> {
  return readJson<StoredPromptSearch>(place, spec);
}

/** A search that lies in the store, as its activities know it. */
export function handleOf(
  place: EvaluationPlace,
  { key, bytes, stored }: { readonly key: string; readonly bytes: Uint8Array; readonly stored: StoredPromptSearch },
): PromptSearchHandle {
  const { input, settings, start, test, warnings } = stored;
  return {
    place,
    spec: { key, sha256: sha256(bytes), bytes: bytes.byteLength },
    environment: input.environments.map(({ name }) => name).join('+'),
    model: input.model.model,
    reflectionModel: input.reflection.model,
    settings,
    start,
    numTest: input.isBranch === true ? 0 : test.length,
    maxConcurrent: input.maxConcurrent,
    folder: `${showStoreUri(storeOf(place).uri)}${place.prefix}`.replace(/\/$/, ''),
    warnings,
  };
}

/** What a search calls a text: the same for the same text, and small. */
export function textName(text: string): string {
  return sha256(Buffer.from(text)).slice(0, 16);
}
