import { RatchetError } from '../../core/errors.ts';
import type { StepCommit } from '../../core/rl/run-state.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { listRunNames } from '../list-runs.ts';
import { currentLineage, readHead, type RunPlace } from '../run-access.ts';
import type { SpecSource } from '../forms/spec-source.ts';
import { readRunRecord, specAskedSince, specOfCommit, storedSpec } from '../forms/stored-spec.ts';
import { describeUnfinished, unfinishedFork } from './unfinished-fork.ts';

/** `not running`: steps are left to make. A server may have the run open, which its folder does not show. */
export type StoredState = 'finished' | 'stopped' | 'not running';

/** Position of a run according to its commits. */
export interface Stand {
  readonly maxSteps: number;
  readonly state: StoredState;
}

/** Position of a run according to its newest commit; null before its first. */
export async function standOfRun(place: RunPlace): Promise<Stand | null> {
  const head = await readHead({ ...place, lineage: await currentLineage(place) });
  return head && standOf(head.commit, (await storedSpec(place)).spec);
}

function standOf({ step, state }: StepCommit, spec: RunSpec): Stand {
  const maxSteps = state.overrides.maxSteps ?? spec.maxSteps;
  if (step >= maxSteps) return { maxSteps, state: 'finished' };
  return { maxSteps, state: step >= (state.overrides.stopAfter ?? Infinity) ? 'stopped' : 'not running' };
}

/** Steps that the run is asked for now, and its progress: a finished run may have been restarted for more. */
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

/** Runs below a store (its absolute URI), newest commit first. */
export async function standingsIn(store: string): Promise<StoredStanding[]> {
  const standings = await Promise.all((await listRunNames(store)).map((name) => standingOf({ name, store })));
  return standings.sort((a, b) => (b.committedAt ?? '').localeCompare(a.committedAt ?? ''));
}

/** A run that is damaged must not hide the others. */
async function standingOf(place: RunPlace): Promise<StoredStanding> {
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
