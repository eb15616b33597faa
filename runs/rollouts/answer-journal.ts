import { setTimeout as delay } from 'node:timers/promises';
import type { EvaluationPlace } from '../../core/eval/evaluation.ts';
import type { StoredPromptSearch } from '../../core/gepa/prompt-search.ts';
import type { Texts } from '../../core/gepa/search-state.ts';
import type { Used } from '../../core/rl/cost.ts';
import type { Turn } from '../../core/rl/rollout/rollout.ts';
import { RatchetError } from '../../core/errors.ts';
import { failpoint } from '../../store/failpoints.ts';
import { storeOf } from '../run-access.ts';
import { NotesLog, type NotesLogOptions } from './notes.ts';
import { Part } from './part.ts';
import { untilStored } from './until-stored.ts';
import {
  type AnswerRow,
  isBrokenOff,
  isReflected,
  isScored,
  type PlayedRow,
  type ReflectedRow,
  type ScoredRow,
  searchKeys,
  type TokenUsage,
  textName,
  type TurnsRow,
} from '../searches/search-store.ts';

/** Milliseconds for which answers are gathered into one write. */
const gatherMs = 3;
/** Searches whose parsed parts are cached: each lease of a search opens its journal. */
const searchesHeld = 4;

type UsedBySearch = 'prompt' | 'completion' | 'reflectionPrompt' | 'reflectionCompletion';

/**
 * Answers to a search's requests, by request id, in parts. A part holds everything since the previous one, so that a
 * hundred simultaneous answers cost one write. If two rows answer the same, the first counts.
 */
export class AnswerJournal {
  readonly #place: EvaluationPlace;
  /** Keys of all notes of its rollouts, as earlier leases left them. */
  readonly #noteKeys: readonly string[];
  readonly #parts: Part<AnswerRow>;
  readonly #signal: AbortSignal;
  readonly #scored = new Map<string, ScoredRow>();
  readonly #played = new Map<string, PlayedRow>();
  readonly #turns = new Map<string, readonly Turn[]>();
  readonly #reflected = new Map<string, ReflectedRow>();
  readonly #texts: Map<string, string>;
  #fresh: AnswerRow[] = [];
  #gathering: Promise<void> | null = null;

  private constructor(
    place: EvaluationPlace,
    { parts, noteKeys }: { readonly parts: Part<AnswerRow>; readonly noteKeys: readonly string[] },
    startTexts: Texts,
    signal: AbortSignal,
  ) {
    this.#place = place;
    this.#noteKeys = noteKeys;
    this.#parts = parts;
    this.#signal = signal;
    this.#texts = new Map(Object.values(startTexts).map((text) => [textName(text), text]));
    for (const row of parts.stored) this.#remember(row);
  }

  /** Opens the current journal: rows this process has read, and rows that others have added since. */
  static async open(
    place: EvaluationPlace,
    { startTexts, openedAt }: StoredPromptSearch,
    signal = new AbortController().signal,
  ): Promise<AnswerJournal> {
    const store = storeOf(place);
    const prefix = `${searchKeys.answers(place)}part_`;
    const parts = await Part.open(store, prefix, { held: heldParts(`${store.uri}${prefix} ${openedAt}`) });
    const noteKeys = await store.list(searchKeys.notes(place));
    return new AnswerJournal(place, { parts, noteKeys }, startTexts, signal);
  }

  /** Row of one example of a request: its score, or the rollout that waits for one. */
  rowOf(request: string, index: number): ScoredRow | PlayedRow | undefined {
    const key = `${request}#${index}`;
    return this.#scored.get(key) ?? this.#played.get(key);
  }

  /** Turns of an interrupted rollout. */
  turnsOf(request: string, index: number): readonly Turn[] {
    return this.#turns.get(`${request}#${index}`) ?? [];
  }

  scoredRow(request: string, index: number): ScoredRow {
    const row = this.#scored.get(`${request}#${index}`);
    if (row !== undefined) return row;
    throw this.#lost(`the answer to request ${request}`);
  }

  /** Tokens of the rollouts of some requests, and of the reflections. */
  used(isOfThem: (request: string) => boolean): Required<Pick<Used, UsedBySearch>> {
    const rows = [...this.#scored.values()].filter(({ request }) => isOfThem(request));
    const reflections = [...this.#reflected.values()].filter(({ request }) => isOfThem(request));
    const sum = (of: readonly { readonly usage?: TokenUsage | null }[], name: keyof TokenUsage): number =>
      of.reduce((total, { usage }) => total + (usage?.[name] ?? 0), 0);
    return {
      prompt: sum(rows, 'promptTokens'),
      completion: sum(rows, 'completionTokens'),
      reflectionPrompt: sum(reflections, 'promptTokens'),
      reflectionCompletion: sum(reflections, 'completionTokens'),
    };
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

  /** Durable when it returns. While the store is away or full, rows are kept here: their cost is paid. */
  async add(row: AnswerRow): Promise<void> {
    this.#remember(row);
    this.#fresh.push(row);
    this.#gathering ??= this.#gather();
    await this.#gathering;
  }

  /** Stores the finished turns of a rollout, unless as many are stored. */
  async keepTurns(row: TurnsRow): Promise<void> {
    const stored = this.turnsOf(row.request, row.index);
    if (row.turns.length > stored.length) await this.add({ ...row, turns: [...row.turns] });
  }

  /** Notes of one rollout. Each has objects of its own: the rollouts of a request may be leased in other parts again. */
  notesOf({
    signal,
    before,
    ...rollout
  }: { readonly request: string; readonly index: number } & Pick<
    NotesLogOptions,
    'signal' | 'before'
  >): Promise<NotesLog> {
    const prefix = searchKeys.notesOf(this.#place, rollout);
    return NotesLog.open(storeOf(this.#place), prefix, { signal, before, keys: this.#noteKeys });
  }

  /** Writes each part independently: later rows do not wait for the previous part. */
  async #gather(): Promise<void> {
    await delay(gatherMs);
    const rows = this.#fresh;
    this.#fresh = [];
    this.#gathering = null;
    await this.#write(rows);
  }

  async #write(rows: readonly AnswerRow[]): Promise<void> {
    await untilStored(() => this.#parts.put(rows), this.#signal);
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
    if (isBrokenOff(row)) {
      const known = this.turnsOf(row.request, row.index);
      // Calls are stored one by one.
      if (row.turns[0]?.call !== undefined) this.#turns.set(key, [...known, ...row.turns]);
      else if (row.turns.length > known.length) this.#turns.set(key, row.turns);
    } else if (isScored(row)) {
      if (!this.#scored.has(key)) this.#scored.set(key, row);
    } else if (!this.#played.has(key)) this.#played.set(key, row);
  }

  #lost(what: string): RatchetError {
    return new RatchetError(
      'CheckpointDamaged',
      `${what} is missing from ${storeOf(this.#place).uri}search/answers, and the search relies on it. Restore the files from a copy.`,
    );
  }
}

/** Parts of a search as they were read or written in this process; a part never changes. */
function heldParts(search: string): Map<number, readonly AnswerRow[]> {
  const held = heldSearches.get(search) ?? new Map<number, readonly AnswerRow[]>();
  heldSearches.delete(search);
  heldSearches.set(search, held);
  if (heldSearches.size > searchesHeld) heldSearches.delete(heldSearches.keys().next().value!);
  return held;
}

const heldSearches = new Map<string, Map<number, readonly AnswerRow[]>>();
