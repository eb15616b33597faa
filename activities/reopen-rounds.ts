import type { LeasedChunk } from '../core/rl/chunks.ts';
import type { CurriculumState } from '../core/rl/curriculum.ts';
import type { LeasedGroups, OpenRound, RunHandle, SamplingRound } from '../core/rl/run-state.ts';
import { damaged, decodeJson } from '../backends/store/objects.ts';
import { sha256 } from '../backends/store/file-store.ts';
import { layout, roundOf } from '../runs/layout.ts';
import { storeOf } from '../runs/run-access.ts';
import { leasesShape } from './lease-groups.ts';

/** A round that was leased by an execution before, and is to be played on. */
interface ReopenedRound extends SamplingRound {
  /** Whether the commit that is gone on from has issued its groups. */
  readonly isIssued: boolean;
  /** Those that have not ended. */
  readonly chunks: readonly LeasedChunk[];
  /** All there were. */
  readonly chunksInAll: readonly LeasedChunk[];
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
    open.map(async ({ leases, chunks: inPlay, ...place }) => {
      const read = await readRound(run, place, true);
      if (read === null || read.round.leases.sha256 !== leases) {
        const where = storeOf(run).uri + layout.leases(run.lineage, place);
        throw damaged(where, `expected the leases that the commit names (sha256 ${leases.slice(0, 8)}…)`);
      }
      const { chunks } = read.round;
      return inPlay === undefined ? read.round : { ...read.round, chunks: inPlay.flatMap((at) => chunks[at] ?? []) };
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
    if (!read) return { rounds, curriculum: after };
    rounds.push(read.round);
    after = read.curriculum;
  }
}

async function readRound(
  run: RunHandle,
  place: Pick<SamplingRound, 'step' | 'first' | 'last'>,
  isIssued: boolean,
): Promise<{ readonly round: ReopenedRound; readonly curriculum: CurriculumState } | null> {
  const key = layout.leases(run.lineage, place);
  const bytes = await storeOf(run).read(key);
  if (bytes === null) return null;
  const { policy, leases, chunks, curriculum } = decodeJson<LeasedGroups>(bytes, key, leasesShape);
  const { step, first, last } = place;
  const ref = { key, sha256: sha256(bytes), bytes: bytes.byteLength, count: leases.length };
  return {
    round: { step, first, last, policyStep: policy.step, leases: ref, isIssued, chunks, chunksInAll: chunks },
    curriculum,
  };
}
