import { appendFileSync, existsSync, mkdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import type { SampledLine } from '../../faults/fake-inference.ts';
import { Refusal } from './refusal.ts';

/**
 * State that the stand-in's database keeps over its death, like SkyRL's: sessions, models by name, promises,
 * checkpoints.
 */
export interface Remembered {
  readonly sessions: Set<string>;
  readonly models: Map<string, { readonly session: string; readonly rank: number; readonly seed: number }>;
  readonly futures: Map<string, Outcome | null>;
  /** `MODEL/KIND/NAME`; those that are whole. */
  readonly checkpoints: Set<string>;
}

/** Identity of a sampled answer. */
export type Sampled = Pick<SampledLine, 'policy' | 'seed' | 'temperature' | 'prompt'>;

export type Outcome = { readonly result: unknown; readonly sampled?: Sampled } | { readonly error: string };

export type Entry =
  | { readonly session: string }
  | { readonly model: string; readonly of: string; readonly rank: number; readonly seed: number }
  /** `seed`: of a turn that is to be sampled. */
  | { readonly future: string; readonly seed?: number }
  | { readonly done: string; readonly outcome: Outcome }
  | { readonly checkpoint: string }
  /** A model that went with its checkpoints. */
  | { readonly forgotten: string };

/** Entries of a stand-in's database, in order; a line cut off by its death is left out. */
export function entriesIn(folder: string): Entry[] {
  const file = fileIn(folder);
  const lines = existsSync(file) ? readFileSync(file, 'utf8').split('\n') : [];
  return lines.filter((line) => line.endsWith('}')).map((line) => JSON.parse(line) as Entry);
}

function fileIn(folder: string): string {
  return path.join(folder, 'journal.jsonl');
}

/** Lines in a file: written before anything is answered. */
export class Journal {
  readonly #file: string;
  readonly remembered: Remembered = {
    sessions: new Set(),
    models: new Map(),
    futures: new Map(),
    checkpoints: new Set(),
  };

  constructor(folder: string) {
    mkdirSync(folder, { recursive: true });
    this.#file = fileIn(folder);
    for (const entry of entriesIn(folder)) this.#take(entry);
    // Like SkyRL: what was pending when the server died belongs to models that are gone.
    for (const [id, outcome] of this.remembered.futures) {
      if (outcome === null) {
        this.write({ done: id, outcome: { error: 'Model not loaded (likely stale request from previous server)' } });
      }
    }
  }

  requireModel(model: string): void {
    if (!this.remembered.models.has(model)) throw new Refusal(404, 'Model not found');
  }

  write(entry: Entry): void {
    appendFileSync(this.#file, `${JSON.stringify(entry)}\n`);
    this.#take(entry);
  }

  #take(entry: Entry): void {
    const { sessions, models, futures, checkpoints } = this.remembered;
    if ('session' in entry) sessions.add(entry.session);
    else if ('model' in entry) models.set(entry.model, { session: entry.of, rank: entry.rank, seed: entry.seed });
    else if ('future' in entry) futures.set(entry.future, null);
    else if ('done' in entry) futures.set(entry.done, entry.outcome);
    else if ('forgotten' in entry) {
      models.delete(entry.forgotten);
      for (const each of checkpoints) if (each.startsWith(`${entry.forgotten}/`)) checkpoints.delete(each);
    } else checkpoints.add(entry.checkpoint);
  }
}
