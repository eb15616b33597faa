import type { RunSpec } from '../config/run-spec.ts';
import type { PlayedPart } from '../core/rl/rollout/played-part.ts';
import type { Rollout } from '../core/rl/rollout/rollout.ts';
import { RolloutJournal } from '../runs/rollouts/rollout-journal.ts';
import { decodeStoredRows } from '../runs/forms/stored-forms.ts';
import type { Store } from '../store/index.ts';
import { failpoint } from '../store/failpoints.ts';
import type { GenerateDependencies } from './policy/asked-model.ts';
import {
  type AttemptEnd,
  type ChunkAttempt,
  type ChunkInput,
  chunkPlace,
  endOf,
  type GeneratedChunk,
  generateMissing,
  type LeasedPlace,
  openChunk,
  type StoredWork,
} from './chunk-play.ts';
import { leaveUnfinished, leftBefore } from './left-chunk.ts';
import { timedOut } from './timed-out.ts';
import { GroupCollector } from './group-collector.ts';
import { byGroup, GroupsInPlay } from './groups-in-play.ts';
import { forgetSnapshots } from './sandboxes/rollout-sandboxes.ts';

export interface CollectedChunk extends GeneratedChunk {
  /** Parts that the run may not have received. */
  readonly parts: readonly PlayedPart[];
}

/**
 * Scores later than this after the last rollout are awaited with all rollouts stored: a judge may take long, or fail.
 */
const scoringGraceMs = 25;

interface Around {
  readonly cancelled: AbortSignal;
  readonly say: () => void;
  readonly tell: (part: PlayedPart) => Promise<boolean>;
  /** Another attempt at the same may still be at work. */
  readonly isRetry: boolean;
}

/**
 * Generates the rollouts of a chunk's groups until all are done, the deadline is reached, or it is stopped; then it
 * names the unfinished ones. Each group is scored when its last rollout has ended. A retry, like the next attempt,
 * finds finished groups, rollouts and turns in the store and generates only what is missing, with the same random
 * numbers.
 */
export async function collectChunk(
  dependencies: GenerateDependencies,
  input: ChunkInput,
  attempt: ChunkAttempt,
  around: Around,
): Promise<CollectedChunk> {
  const { cancelled, say, tell, isRetry } = around;
  const place = chunkPlace(input);
  const { store, prefix, ended } = place;
  const collector = await GroupCollector.open(dependencies, input, { signal: cancelled, tell, isRetry });
  const left = await store.read(`${ended}.json`);
  if (left) return { ...leftBefore(left, `${ended}.json`, attempt), parts: collector.untold };

  const journal = await openJournal(store, prefix, input, cancelled);
  journal.keep();
  if (collector.hasWhole) journal.adopt(await generatedAsOne(store, `${prefix}.jsonl`));
  const opened = await openChunk(dependencies, input, attempt, { journal, cancelled });
  const wanted = opened.wanted.filter(({ place }) => !collector.has(place.group));
  for (const { place } of opened.wanted) if (collector.has(place.group)) journal.release(place.group);
  collector.onStored = (ordinal) => {
    journal.release(ordinal);
    void forgetSnapshotsOf(opened.spec, input.run, ordinal);
  };
  const stored = (): StoredWork => addSizes(journal.size(), collector.size);
  attempt.goOnFrom(stored());
  const isMissing = ({ place }: LeasedPlace): boolean => !journal.has(place);
  const missing = wanted.filter(isMissing);
  const leases = new Map(wanted.map(({ lease }) => [lease.ordinal, lease]));
  const groups = new GroupsInPlay((group, times) =>
    collector.add({ lease: leases.get(group)!, members: journal.of(group), ...times, generateS: attempt.seconds() }),
  );
  const inGroups = byGroup(wanted, ({ place }) => place.group);
  for (const [i, group] of [...leases.keys()].entries()) groups.add(group, inGroups[i]!.filter(isMissing).length);
  const adopted = wanted.length - missing.length + collector.size.rollouts;
  const { failed, overBudget } = await generateMissing(opened, missing, {
    say,
    onFinished: ({ group }, playedS) => groups.finish(group, playedS),
  });
  const open = wanted.filter((one) => !collector.has(one.place.group) && isMissing(one));
  const whichEnd = (): AttemptEnd => endOf(attempt, cancelled, opened.deadline);
  const endedBy = endReason(open, { failed, overBudget }, whichEnd, opened.signal);
  if (endedBy === 'deadline' && input.isLast === true && attempt.notReady === null) {
    for (const one of open) {
      const late = await timedOut(one, journal, opened.spec);
      journal.add(late);
      groups.finish(late.group, null);
    }
  }
  if (endedBy === undefined) {
    if (!(await collector.isScoredWithin(scoringGraceMs))) {
      attempt.beginScoring();
      await journal.flush();
    }
    await failpoint('play.generated');
  }
  await collector.close().catch((reason: unknown) => {
    if (!cancelled.aborted) throw reason;
  });
  const isWhole = wanted.every(({ place }) => collector.has(place.group));
  if (isWhole) {
    journal.forget();
    const { rollouts } = collector.size;
    return { rollouts, adopted, seconds: attempt.seconds(), ...attempt.lost(), parts: collector.untold };
  }
  await journal.flush();
  const rest = await leaveUnfinished(place, {
    journal,
    unfinished: open.map((one) => one.place),
    endedBy: endedBy ?? endOf(attempt, cancelled, opened.deadline),
    adopted,
    attempt,
    stored: stored(),
    overBudget,
  });
  journal.forget();
  return { ...rest, parts: collector.untold };
}

async function forgetSnapshotsOf(
  { environments }: Pick<RunSpec, 'environments'>,
  { name: run, store, lineage }: ChunkInput['run'],
  group: number,
): Promise<void> {
  const saved = environments.find(({ program }) => program?.resume != null);
  if (saved) await forgetSnapshots(saved, { store, run, lineage, group: String(group) });
}

function openJournal(
  store: Store,
  prefix: string,
  { round: { leases } }: ChunkInput,
  signal: AbortSignal,
): Promise<RolloutJournal> {
  const around = { notes: `${prefix}/notes_`, removedFirst: leases.key, signal };
  return RolloutJournal.open(store, `${prefix}/`, leases.sha256, around);
}

/** Why rollouts are open, or were left to another worker; undefined: all have ended. */
function endReason(
  open: readonly unknown[],
  { failed, overBudget }: Awaited<ReturnType<typeof generateMissing>>,
  ofSignals: () => AttemptEnd,
  signal: AbortSignal,
): AttemptEnd | undefined {
  if (failed.length > 0 && !signal.aborted) return 'failures';
  if (open.length === 0) return undefined;
  return overBudget !== undefined && !signal.aborted ? 'budget' : ofSignals();
}

/** The rollouts of a chunk that was generated as one object and then scored, as until 28 November 2026 at level 0. */
async function generatedAsOne(store: ReturnType<typeof chunkPlace>['store'], key: string): Promise<readonly Rollout[]> {
  const bytes = await store.read(key);
  return bytes === null ? [] : decodeStoredRows<Rollout>(bytes, key);
}

function addSizes(one: StoredWork, other: StoredWork): StoredWork {
  return { rollouts: one.rollouts + other.rollouts, tokens: one.tokens + other.tokens };
}
