import type { JsonValue } from '../../core/json-value.ts';
import { type BegunNote, effectNotes } from '../../core/rl/rollout/effects.ts';
import type { RowPlace } from '../../core/rl/rollout/in-play.ts';
import type { EffectProgress } from '../../core/rl/rollout/progress.ts';
import type { NotesPart } from '../../core/rl/rollout/notes.ts';
import type { RecordedTurn, Turn } from '../../core/rl/rollout/rollout.ts';
import type { Store } from '../../store/index.ts';
import { decodeStored, decodeStoredRow } from '../forms/stored-forms.ts';
import { notesShape } from '../rollouts/notes.ts';
import type { StoredTurn } from '../rollouts/turn-rows.ts';

/** What is shown of a turn: numbers of tokens in place of the tokens. */
export interface FoundTurn extends Pick<Turn, 'call' | 'policyStep' | 'policyStepEnd' | 'finishReason' | 'toolCalls'> {
  readonly position: number;
  readonly promptTokens: number;
  readonly tokens: number;
  readonly seconds: number | null;
}

/**
 * Stored turns of one running rollout, the newest `most`, oldest first. Each row says where the one before it is, so only
 * objects with rows of this rollout are read.
 */
export async function storedTurns(store: Store, prefix: string, newest: RowPlace, most: number): Promise<FoundTurn[]> {
  const turns: FoundTurn[] = [];
  const lines = new LinesOfObjects(store, prefix);
  /** A turn that was sampled again at a position makes older ones from there on void. */
  let voidFrom = Infinity;
  for (let at: RowPlace | null = newest; at !== null && turns.length < most;) {
    const row: StoredTurn | null = await lines.row(at);
    if (row === null) break; // its chunk has ended meanwhile
    if (row.call !== undefined || row.turn < voidFrom) turns.push(found(row));
    if (row.call === undefined) voidFrom = Math.min(voidFrom, row.turn);
    at = row.before ? { part: at.part, ...row.before } : null;
  }
  return turns.toReversed();
}

/** Objects are read once: those of one rollout that come together are in one. */
class LinesOfObjects {
  readonly #store: Store;
  readonly #prefix: string;
  #part: { readonly number: number; readonly lines: readonly string[] } | null = null;

  constructor(store: Store, prefix: string) {
    this.#store = store;
    this.#prefix = prefix;
  }

  async row({ part, row }: RowPlace): Promise<StoredTurn | null> {
    const key = `${this.#prefix}${part}.jsonl`;
    if (this.#part?.number !== part) {
      const bytes = await this.#store.read(key);
      if (bytes === null) return null;
      this.#part = { number: part, lines: Buffer.from(bytes).toString().split('\n') };
    }
    const line = Buffer.from(this.#part.lines[row] ?? '');
    return decodeStoredRow<StoredTurn>(line, this.#store.uri + key, row + 1);
  }
}

function found({ turn, call, policyStep, policyStepEnd, finishReason, toolCalls, ...row }: StoredTurn): FoundTurn {
  const { promptTokenIds, tokenIds, seconds = null } = row as Partial<RecordedTurn>;
  const shared = 'prompt' in row ? row.prompt.take + row.prompt.rest.length : 0;
  return {
    position: turn,
    ...(call && { call }),
    policyStep,
    ...(policyStepEnd !== undefined && { policyStepEnd }),
    finishReason,
    ...(toolCalls && { toolCalls }),
    promptTokens: promptTokenIds?.length ?? shared,
    tokens: tokenIds?.length ?? 0,
    seconds,
  };
}

interface NotesOf {
  readonly group: number;
  readonly index: number;
  /** The newest object with notes of the rollout. */
  readonly part: number;
  /** The attempt at work. */
  readonly by: string;
}

/** Effects of one running rollout, the newest `most`, oldest first. Only objects with notes of this rollout are read. */
export async function notedEffects(
  store: Store,
  prefix: string,
  { group, index, part, by }: NotesOf,
  most: number,
): Promise<EffectProgress[]> {
  const settled = new Set<string>();
  const begun: { readonly key: string; readonly note: BegunNote; readonly attempt: string }[] = [];
  for (let at: number | null = part; at !== null && begun.length < most;) {
    const key: string = `${prefix}${at}.json`;
    const bytes: Uint8Array | null = await store.read(key);
    if (bytes === null) break; // its chunk has ended meanwhile
    const { attempt, notes }: NotesPart = decodeStored<NotesPart>(bytes, store.uri + key, notesShape);
    const own = notes.filter((note) => note.group === group && note.index === index);
    for (const { kind, key: name, value } of own.toReversed()) {
      if (kind === effectNotes.settled) settled.add(name);
      if (kind === effectNotes.begun) begun.push({ key: name, note: asBegun(value), attempt });
    }
    at = own.find(({ before }) => before !== undefined)?.before ?? null;
  }
  return begun.toReversed().map(({ key, note: { kind, name }, attempt }) => {
    const isOpen = attempt === by || kind !== 'once';
    return { kind, name, outcome: settled.has(key) ? 'done' : isOpen ? 'open' : 'in doubt' };
  });
}

function asBegun(value: JsonValue): BegunNote {
  return value as unknown as BegunNote;
}
