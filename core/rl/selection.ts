import type { RunSpec } from '../../config/run-spec.ts';
import { decodeRanges, encodeRanges } from './ledger.ts';
import { restrictKept } from './played-part.ts';
import type { KeptGroups } from './run-state.ts';
import { isStale } from './staleness.ts';

/** What a step trains on: so many groups; or groups until their rows have so many tokens, with a guess of how many those are. */
export interface BatchSize {
  readonly groups: number;
  readonly tokens: number | null;
}

export function batchSizeOf(spec: Pick<RunSpec, 'batchSize' | 'rolloutsPerExample' | 'tokenBatchSize'>): BatchSize {
  return { groups: spec.batchSize / spec.rolloutsPerExample, tokens: spec.tokenBatchSize };
}

/** What a step does with the kept groups at hand. All ordinals as ranges. */
interface Selection {
  readonly trained: readonly KeptGroups[];
  /** How much of a batch `trained` is: 1 = a whole one. */
  readonly share: number;
  /** Groups of a whole batch; where that is so many tokens, how many it takes as far as those at hand tell. */
  readonly groupsPerBatch: number;
  readonly surplus: readonly KeptGroups[];
  readonly stale: string;
}

/** The share of a batch that a step trains on at least where it may be partial, and where the difficulty filter was widened: what there is near the end. */
const batchShareMin = { partial: 1 / 2, widened: 1 / 8 };

/** Whether a step trains on what is ready, rather than sample once more. */
export function isBatch(input: {
  /** How much of a batch is ready. */
  readonly share: number;
  /** Surplus alone makes whole batches only. */
  readonly hasSampled: boolean;
  readonly isWidened: boolean;
  readonly fill: RunSpec['batchFill'];
  /** Rounds were sampled for it, and a whole one did not come of them. */
  readonly isLong: boolean;
}): boolean {
  const { share, hasSampled, isWidened, fill, isLong } = input;
  if (share === 1) return true;
  if (!hasSampled || share === 0) return false;
  if (fill === 'once') return true;
  if (fill === 'full' && !isLong && !isWidened) return false;
  return share >= (isWidened ? batchShareMin.widened : batchShareMin.partial);
}

/**
 * Takes the oldest groups first, by ordinal and not by arrival, so that a resumed run takes the same. Groups beyond
 * the batch wait for the next step; groups too old for this step are stale. A batch of so many tokens is cut after the first group with which it
 * has them.
 */
export function selectGroups(input: {
  readonly step: number;
  readonly size: BatchSize;
  readonly maxOffPolicySteps: number;
  readonly kept: readonly KeptGroups[];
}): Selection {
  const { step, size, maxOffPolicySteps, kept } = input;
  const stale = kept.filter((source) => isStale(source, step, maxOffPolicySteps));
  const usable = kept.filter((source) => !isStale(source, step, maxOffPolicySteps));
  const cut = size.tokens === null ? cutByGroups(usable, size.groups) : cutByTokens(usable, size.tokens, size.groups);
  const { taken, share, groupsPerBatch } = cut;
  return {
    share,
    groupsPerBatch,
    trained: restrict(usable, (ordinal) => taken.has(ordinal)),
    surplus: restrict(usable, (ordinal) => !taken.has(ordinal)),
    stale: encodeRanges(stale.flatMap((source) => decodeRanges(source.ordinals))),
  };
}

interface Cut extends Pick<Selection, 'share' | 'groupsPerBatch'> {
  readonly taken: ReadonlySet<number>;
}

function cutByGroups(usable: readonly KeptGroups[], groupsPerBatch: number): Cut {
  const ordinals = usable.flatMap((source) => decodeRanges(source.ordinals)).sort((a, b) => a - b);
  const taken = new Set(ordinals.slice(0, groupsPerBatch));
  return { taken, share: taken.size / groupsPerBatch, groupsPerBatch };
}

function cutByTokens(usable: readonly KeptGroups[], target: number, guess: number): Cut {
  const sizes = usable.flatMap(({ ordinals, tokens }) =>
    decodeRanges(ordinals).map((ordinal, i) => [ordinal, tokens![i]!] as const),
  );
  const taken = new Set<number>();
  let held = 0;
  for (const [ordinal, tokens] of sizes.sort(([a], [b]) => a - b)) {
    if (held >= target) break;
    taken.add(ordinal);
    held += tokens;
  }
  const share = Math.min(1, held / target);
  // As many more as those that are here are long; one more at least while it is not whole.
  const wanted = held === 0 ? guess : Math.ceil((taken.size * target) / held);
  return { taken, share, groupsPerBatch: share === 1 ? taken.size : Math.max(wanted, taken.size + 1) };
}

/** How many groups the sources hold. */
export function countGroups(sources: readonly KeptGroups[]): number {
  return sources.reduce((sum, source) => sum + decodeRanges(source.ordinals).length, 0);
}

function restrict(sources: readonly KeptGroups[], keep: (ordinal: number) => boolean): KeptGroups[] {
  return sources.map((source) => restrictKept(source, keep)).filter(({ ordinals }) => ordinals !== '');
}
