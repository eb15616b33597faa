import type { RunSpec } from '../config/run-spec.ts';
import { teamDefault } from '../core/fleet/pool-types.ts';
import type { EvaluationPlace } from '../core/eval/evaluation.ts';
import { type Changed, nameIn, type RunChange } from '../core/rl/changes.ts';
import type { NameBesideRuns } from '../core/names.ts';
import type { RunOwner } from '../core/roles.ts';
import { sha256 } from '../store/file-store.ts';
import { orIfDamaged } from '../store/objects.ts';
import { decodeStored, encodeStored } from './forms/stored-forms.ts';
import { storedSpec } from './forms/stored-spec.ts';
import { layout } from './layout.ts';
import { type RunPlace, storeOf } from './run-access.ts';

/** Keeps a change. Idempotent: one of an execution is written once. */
export async function writeChange(of: Changed, change: RunChange): Promise<void> {
  const place = placeOfChanges(of);
  const key = layout.change(change.execution, sha256(Buffer.from(change.id)), place.prefix);
  await storeOf(place).putIfAbsent(key, encodeStored(key, change));
}

/** Sweeps, pools and schedules have a folder beside the runs; searches and evaluations keep their changes in their own. */
function placeOfChanges(of: Changed): EvaluationPlace {
  switch (of.kind) {
    case 'run':
      return { ...of, prefix: '' }; // with the landmark of a run that was opened
    case 'sweep':
    case 'pool':
    case 'schedule':
      return { name: `${of.kind}s` satisfies NameBesideRuns, store: of.store, prefix: `${of.name}/` };
    case 'search':
      return { ...of.place, prefix: `${of.place.prefix}search/` };
    case 'evaluation':
      return { ...of.place, prefix: `${of.place.prefix}evaluation/` };
    default:
      return of satisfies never;
  }
}

export interface RecordedChanges {
  /** Oldest first. */
  readonly changes: readonly RunChange[];
  /** One line for each that cannot be read; the others can. */
  readonly damaged: readonly string[];
}

/** All that people changed in a run, a sweep, a pool, a schedule, a search or an evaluation. */
export async function readChanges(of: Changed): Promise<RecordedChanges> {
  const place = placeOfChanges(of);
  const store = storeOf(place);
  const changes: RunChange[] = [];
  const damaged: string[] = [];
  await Promise.all(
    (await store.list(layout.changes(place.prefix))).map((key) =>
      orIfDamaged(
        async () => {
          const bytes = await store.read(key);
          if (bytes !== null) changes.push(changeIn(bytes, store.uri + key));
        },
        (why) => void damaged.push(why),
      ),
    ),
  );
  changes.sort((a, b) => a.time.localeCompare(b.time));
  return { changes, damaged };
}

/**
 * Who started the run first; null for a run that was begun before that was kept, or where a change cannot be read: it may
 * be that start.
 */
export function ownerIn({ changes, damaged }: RecordedChanges): string | null {
  if (damaged.length > 0) return null;
  const first = changes.find(({ what }) => what === 'start');
  return first === undefined || first.identity === '' ? null : nameIn(first.identity);
}

/** The owner of a run, from its folder; null where it is not known. */
export async function storedOwner(run: RunPlace): Promise<RunOwner | null> {
  const who = ownerIn(await readChanges({ ...run, kind: 'run' }));
  return who === null ? null : { who, team: teamNamedBy((await storedSpec(run)).spec) };
}

/** The team that a run's settings name; null for the one of those that name none. */
export function teamNamedBy({ queue }: Pick<RunSpec, 'queue'>): string | null {
  return queue === undefined || queue.team === teamDefault ? null : queue.team;
}

function changeIn(bytes: Uint8Array, place: string): RunChange {
  const change = decodeStored<RunChange>(bytes, place, ({ time, identity, what, asked, execution, id, ...more }) => ({
    'a time, an identity, what was asked, an execution and an id, as texts': [
      time,
      identity,
      what,
      asked,
      execution,
      id,
    ].every((value) => typeof value === 'string'),
    'a principal, or null': more['principal'] === null || typeof more['principal'] === 'string',
  }));
  const { time, identity, principal, what, asked, step, workflow, execution, id } = change;
  return { time, identity, principal, what, asked, step, workflow, execution, id };
}
