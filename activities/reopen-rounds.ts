import { chunkCount } from '../core/rl/chunks.ts';
import type { CurriculumState } from '../core/rl/curriculum.ts';
import type { LeasedGroups, OpenRound, RunHandle, SamplingRound } from '../core/rl/run-state.ts';
import { damaged, decodeJson } from '../backends/store/objects.ts';
import { sha256 } from '../backends/store/file-store.ts';
import { layout, roundOf } from '../runs/layout.ts';
import { storeOf } from '../runs/run-access.ts';
import { groupsByEnvironment, leasesShape } from './lease-groups.ts';

/** A round that was leased by an execution before, and is to be played on. */
interface ReopenedRound extends SamplingRound {
  /** Whether the commit that is gone on from has issued its groups. */
  readonly isIssued: boolean;
  /** How many of the groups are of each environment. */
  readonly groups: Readonly<Record<string, number>>;
  /** In how many chunks it was played, where anything of it is stored: in others nothing of it would be found. */
  readonly chunks?: number;
}

/**
 * The rounds that were in play when an execution ended: those that the commit names, and those leased after it, each of which begins where
 * the one before it ended. What was sampled for them lies in the store, and is adopted.
 */
export async function reopenRounds({
  run,
  open,
  curriculum,
}: {
  readonly run: RunHandle;
  readonly open: readonly OpenRound[];
  readonly curriculum: CurriculumState;
}): Promise<{ readonly rounds: readonly ReopenedRound[]; readonly curriculum: CurriculumState }> {
  const rounds = await Promise.all(
    open.map(async ({ leases, ...place }) => {
      const read = await readRound(run, place, true);
      if (read === null || read.round.leases.sha256 !== leases) {
        const where = storeOf(run).uri + layout.leases(run.lineage, place);
        throw damaged(where, `expected the leases that the commit names (sha256 ${leases.slice(0, 8)}…)`);
      }
      return read.round;
    }),
  );
  const keys = await storeOf(run).list(layout.allRounds(run.lineage));
  const later = keys.flatMap((key) => {
    const place = roundOf(key);
    return place !== null && key === layout.leases(run.lineage, place) ? [place] : [];
  });
  let after = curriculum;
  for (;;) {
    const next = later.find(({ first }) => first === after.nextOrdinal);
    const read = next && (await readRound(run, next, false));
    if (!read)
      return { rounds: rounds.map((round) => ({ ...round, ...chunksOf(run, round, keys) })), curriculum: after };
    rounds.push(read.round);
    after = read.curriculum;
  }
}

function chunksOf(run: RunHandle, { step, first, last }: SamplingRound, keys: readonly string[]): { chunks?: number } {
  const folder = layout.round(run.lineage, step, first, last);
  const counts = keys.flatMap((key) => {
    const count = key.startsWith(folder) ? chunkCount(key.slice(folder.length)) : null;
    return count === null ? [] : [count];
  });
  return counts.length === 0 ? {} : { chunks: Math.max(...counts) };
}

async function readRound(
  run: RunHandle,
  place: Pick<SamplingRound, 'step' | 'first' | 'last'>,
  isIssued: boolean,
): Promise<{ readonly round: ReopenedRound; readonly curriculum: CurriculumState } | null> {
  const key = layout.leases(run.lineage, place);
  const bytes = await storeOf(run).read(key);
  if (bytes === null) return null;
  const { policy, leases, curriculum } = decodeJson<LeasedGroups>(bytes, key, leasesShape);
  const groups = groupsByEnvironment(leases);
  const { step, first, last } = place;
  const ref = { key, sha256: sha256(bytes), bytes: bytes.byteLength, count: leases.length };
  return { round: { step, first, last, policyStep: policy.step, leases: ref, isIssued, groups }, curriculum };
}
