import { RatchetError } from '../core/errors.ts';
import type { StepCommit } from '../core/rl/run-state.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { listRunNames } from './list-runs.ts';
import { currentLineage, readHead, type RunPlace } from './run-access.ts';
import type { SpecSource } from './spec-source.ts';
import { readRunRecord, specAskedSince, specOfCommit, storedSpec } from './stored-spec.ts';
import { describeUnfinished, unfinishedFork } from './unfinished-fork.ts';

/** `not running`: it has steps to make; a server may have it open, which nobody can tell from its folder. */
export type StoredState = 'finished' | 'stopped' | 'not running';

/** Where a run stands by its commits. */
export interface Stand {
  readonly maxSteps: number;
  readonly state: StoredState;
}

/** Where a run stands by its newest commit; null before its first. */
export async function standOfRun(place: RunPlace): Promise<Stand | null> {
  const head = await readHead({ ...place, lineage: await currentLineage(place) });
  return head && standOf(head.commit, (await storedSpec(place)).spec);
}

function standOf({ step, state }: StepCommit, spec: RunSpec): Stand {
  const maxSteps = state.overrides.maxSteps ?? spec.maxSteps;
  if (step >= maxSteps) return { maxSteps, state: 'finished' };
  return { maxSteps, state: step >= (state.overrides.stopAfter ?? Infinity) ? 'stopped' : 'not running' };
}

/** What the run is to make now, and where it stands with that: one that has finished may have been started again for more steps. */
export async function askedOf(
  place: RunPlace,
  head: StepCommit,
): Promise<{ readonly spec: RunSpec; readonly source: SpecSource | null; readonly stand: Stand }> {
  const committed = await specOfCommit(place, head);
  const stand = standOf(head, committed.spec);
  const since = stand.state === 'finished' ? await specAskedSince(place, head) : null;
  if (since === null || since.spec.maxSteps <= head.step) return { ...committed, stand };
  return { ...since, stand: { maxSteps: since.spec.maxSteps, state: 'not running' } };
}

/** One line of a list. */
export interface StoredStanding {
  readonly run: string;
  readonly state: StoredState | 'unfinished fork' | 'cannot be read';
  readonly step: number | null;
  readonly maxSteps: number | null;
  readonly reward: number | null;
  /** ISO time of its newest commit; null before the first. */
  readonly committedAt: string | null;
  readonly note: string | null;
}

/** The runs whose folders lie in a store (its absolute URI), the newest commit first; of a bucket none, as its runs cannot be listed cheaply. */
export async function standingsIn(store: string): Promise<StoredStanding[]> {
  const standings = await Promise.all((await listRunNames(store)).map((name) => standingOf({ name, store })));
  return standings.sort((a, b) => (b.committedAt ?? '').localeCompare(a.committedAt ?? ''));
}

/** A run that is damaged must not hide the others. */
export async function standingOf(place: RunPlace): Promise<StoredStanding> {
  const nothing = { run: place.name, step: null, maxSteps: null, reward: null, committedAt: null, note: null };
  try {
    await readRunRecord(place);
    const head = await readHead({ ...place, lineage: await currentLineage(place) });
    if (head === null) {
      const origin = await unfinishedFork(place);
      const note = origin === null ? 'nothing is committed yet' : describeUnfinished(place.name, origin);
      return { ...nothing, state: origin === null ? 'not running' : 'unfinished fork', note };
    }
    const { step, metrics, committedAt } = head.commit;
    const { stand } = await askedOf(place, head.commit);
    return { ...nothing, step, reward: metrics['train/reward'] ?? null, committedAt, ...stand };
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    return { ...nothing, state: 'cannot be read', note: error.message };
  }
}
