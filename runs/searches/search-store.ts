import type { EvaluationPlace } from '../../core/eval/evaluation.ts';
import type { ExampleRef, PromptSearchHandle, StoredPromptSearch } from '../../core/gepa/prompt-search.ts';
import type { ReflectionRecord } from '../../core/gepa/reflection-prompt.ts';
import { tokensOf } from '../../core/rl/rollout/results.ts';
import type { Outcome, Rollout, Turn } from '../../core/rl/rollout/rollout.ts';
import { sha256 } from '../../store/file-store.ts';
import { showStoreUri } from '../../store/index.ts';
import { readJson, storeOf } from '../run-access.ts';

/** Keys of a search's parts, below its prefix. */
export const searchKeys = {
  search: ({ prefix }: EvaluationPlace) => `${prefix}search/search.json`,
  summary: ({ prefix }: EvaluationPlace) => `${prefix}search/summary.json`,
  /** Answers to requests, a row each. */
  answers: ({ prefix }: EvaluationPlace) => `${prefix}search/answers/`,
  notes: ({ prefix }: EvaluationPlace) => `${prefix}search/notes/`,
  /** Notes of one rollout: those of a request may be cut into leases anew. */
  notesOf: (place: EvaluationPlace, { request, index }: Pick<ScoredRow, 'request' | 'index'>) =>
    `${searchKeys.notes(place)}${encodeURIComponent(request)}_${index}/notes_`,
} as const;

export interface TokenUsage {
  readonly promptTokens: number;
  readonly completionTokens: number;
}

/** A scored rollout of a request; with its trace for the reflection when the request asks for traces. */
export interface ScoredRow {
  readonly request: string;
  /** Index into the request's examples. */
  readonly index: number;
  readonly example: ExampleRef;
  readonly outcome: Outcome;
  /** null: infrastructure failure. */
  readonly reward: number | null;
  readonly metrics: Readonly<Record<string, number>>;
  readonly error?: string;
  readonly record?: ReflectionRecord;
  /** Tokens that the rollout took; missing from versions of Ratchet that did not count them. */
  readonly usage?: TokenUsage;
}

/** A rollout that waits for its score. */
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

export interface ReflectedRow {
  readonly request: string;
  /** The model's whole answer. */
  readonly answer: string;
  /** The new text in the answer; null without one. */
  readonly text: string | null;
  readonly usage: TokenUsage | null;
}

/** Tokens of a stored rollout. */
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

/** A stored search, as its activities use it. */
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

/** Short name of a text: a prefix of its sha256. */
export function textName(text: string): string {
  return sha256(Buffer.from(text)).slice(0, 16);
}
