import { decodeRanges, encodeRanges } from '../core/rl/ledger.ts';
import type { LeasedChunk } from '../core/rl/sampling/chunks.ts';
import type { CurriculumState } from '../core/rl/sampling/curriculum.ts';
import { type PlayedPart, restrictPart } from '../core/rl/rollout/played-part.ts';
import type { OpenRound, RunHandle, SamplingRound } from '../core/rl/run-state.ts';
import { damaged } from '../store/objects.ts';
import { sha256 } from '../store/file-store.ts';
import { layout, roundOf } from '../runs/layout.ts';
import { leasesIn } from '../runs/rollouts/leases.ts';
import { playedPartIn } from '../runs/forms/record-shapes.ts';
import { storeOf } from '../runs/run-access.ts';
import { cancelOtherFlows } from './around/other-flows.ts';

/** A round that an earlier execution leased and that continues. */
interface ReopenedRound extends SamplingRound {
  /** Whether the commit that the run continues from has issued its groups. */
  readonly isIssued: boolean;
  /** Those with groups that have not ended. */
  readonly chunks: readonly LeasedChunk[];
  /** The open groups, as ranges; absent: all of them. */
  readonly groups?: string;
  /** Parts stored so far. */
  readonly parts: readonly PlayedPart[];
}

/**
 * Rounds that were open when an execution ended: those that the commit names, and those leased after it, each of which
 * begins where the one before it ended. Their stored samples are adopted. `flows`: ids of the workflows that generate
 * rounds for this execution; others of the run are cancelled.
 */
export async function reopenRounds({
  run,
  open,
  curriculum,
  flows,
}: {
  readonly run: RunHandle;
  readonly open: readonly OpenRound[];
  readonly curriculum: CurriculumState;
  readonly flows: readonly string[];
}): Promise<{ readonly rounds: readonly ReopenedRound[]; readonly curriculum: CurriculumState }> {
  await cancelOtherFlows(flows);
  const keys = await storeOf(run).list(layout.allRounds(run.lineage));
  const named = await Promise.all(
    open.map(async ({ leases, chunks: inPlay, groups: left, ...place }) => {
      const read = await readRound(run, place);
      if (read === null || read.round.leases.sha256 !== leases) {
        const where = storeOf(run).uri + layout.leases(run.lineage, place);
        throw damaged(where, `expected the leases that the commit names (sha256 ${leases.slice(0, 8)}…)`);
      }
      const groups = left ?? (inPlay && groupsOf(read.chunks, inPlay));
      return reopened(run, keys, { ...read.round, isIssued: true }, read.chunks, groups);
    }),
  );
  const rounds = [...named];
  const later = keys.flatMap((key) => {
    const place = roundOf(key);
    return place !== null && key === layout.leases(run.lineage, place) ? [place] : [];
  });
  let after = curriculum;
  for (;;) {
    const next = later.find(({ first }) => first === after.nextOrdinal);
    const read = next && (await readRound(run, next));
    if (!read) return { rounds, curriculum: after };
    rounds.push(await reopened(run, keys, { ...read.round, isIssued: false }, read.chunks));
    after = read.curriculum;
  }
}

/** Groups of the chunks at these indices, as ranges. */
function groupsOf(chunks: readonly LeasedChunk[], places: readonly number[]): string {
  return encodeRanges(places.flatMap((place) => decodeRanges(chunks[place]?.ordinals ?? '')).toSorted((a, b) => a - b));
}

async function reopened(
  run: RunHandle,
  keys: readonly string[],
  round: SamplingRound & { readonly isIssued: boolean },
  chunks: readonly LeasedChunk[],
  groups?: string,
): Promise<ReopenedRound> {
  const left = groups === undefined ? null : new Set(decodeRanges(groups));
  const folder = layout.round(run.lineage, round.step, round.first, round.last);
  const parts = await Promise.all(
    keys
      .filter((key) => key.startsWith(folder) && layout.isPlayedPart(key))
      .map(async (key) => {
        const bytes = await storeOf(run).read(key);
        const part = bytes && playedPartIn(bytes, storeOf(run).uri + key);
        return part && left ? restrictPart(part, left) : part;
      }),
  );
  const inPlay = chunks.filter(({ ordinals }) => !left || decodeRanges(ordinals).some((ordinal) => left.has(ordinal)));
  return {
    ...round,
    chunks: inPlay,
    ...(groups === undefined ? {} : { groups }),
    parts: parts.filter((part) => part !== null),
  };
}

async function readRound(
  run: RunHandle,
  place: Pick<SamplingRound, 'step' | 'first' | 'last'>,
): Promise<{
  readonly round: SamplingRound;
  readonly chunks: readonly LeasedChunk[];
  readonly curriculum: CurriculumState;
} | null> {
  const key = layout.leases(run.lineage, place);
  const bytes = await storeOf(run).read(key);
  if (bytes === null) return null;
  const { policy, leases, chunks, curriculum } = leasesIn(bytes, storeOf(run).uri + key);
  const { step, first, last } = place;
  const ref = { key, sha256: sha256(bytes), bytes: bytes.byteLength, count: leases.length };
  return { round: { step, first, last, policyStep: policy.step, leases: ref }, chunks, curriculum };
}
