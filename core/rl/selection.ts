import type { RunSpec } from '../../config/run-spec.ts';
import { decodeRanges, encodeRanges } from './ledger.ts';
import type { KeptGroups } from './run-state.ts';
import { isStale } from './staleness.ts';

/** What a step does with the kept groups at hand. All ordinals as ranges. */
interface Selection {
  readonly trained: readonly KeptGroups[];
  readonly surplus: readonly KeptGroups[];
  readonly stale: string;
}

/** The share of a batch that a step trains on at least where it may be partial, and where the difficulty filter was widened: what there is near the end. */
const batchShareMin = { partial: 1 / 2, widened: 1 / 8 };

/** Whether a step trains on what is ready, rather than sample once more. */
export function isBatch(input: {
  readonly ready: number;
  readonly groupsPerBatch: number;
  /** Surplus alone makes whole batches only. */
  readonly hasSampled: boolean;
  readonly isWidened: boolean;
  readonly fill: RunSpec['batchFill'];
  /** Rounds were sampled for it, and a whole one did not come of them. */
  readonly isLong: boolean;
}): boolean {
  const { ready, groupsPerBatch, hasSampled, isWidened, fill, isLong } = input;
  if (ready === groupsPerBatch) return true;
  if (!hasSampled || ready === 0) return false;
  if (fill === 'once') return true;
  if (fill === 'full' && !isLong && !isWidened) return false;
  return ready >= groupsPerBatch * (isWidened ? batchShareMin.widened : batchShareMin.partial);
}

/**
 * Takes the oldest groups first, by ordinal and not by arrival, so that a resumed run takes the same. Groups beyond
 * the batch wait for the next step; groups too old for this step are stale.
 */
export function selectGroups(input: {
  readonly step: number;
  readonly groupsPerBatch: number;
  readonly maxOffPolicySteps: number;
  readonly kept: readonly KeptGroups[];
}): Selection {
  const { step, groupsPerBatch, maxOffPolicySteps, kept } = input;
  const stale = kept.filter((source) => isStale(source, step, maxOffPolicySteps));
  const usable = kept.filter((source) => !isStale(source, step, maxOffPolicySteps));
  const ordinals = usable.flatMap((source) => decodeRanges(source.ordinals)).sort((a, b) => a - b);
  const taken = new Set(ordinals.slice(0, groupsPerBatch));
  return {
    trained: restrict(usable, (ordinal) => taken.has(ordinal)),
    surplus: restrict(usable, (ordinal) => !taken.has(ordinal)),
    stale: encodeRanges(stale.flatMap((source) => decodeRanges(source.ordinals))),
  };
}

/** How many groups the sources hold. */
export function countGroups(sources: readonly KeptGroups[]): number {
  return sources.reduce((sum, source) => sum + decodeRanges(source.ordinals).length, 0);
}

function restrict(sources: readonly KeptGroups[], keep: (ordinal: number) => boolean): KeptGroups[] {
  return sources.flatMap((source) => {
    const all = decodeRanges(source.ordinals);
    const kept = all.filter(keep);
    if (kept.length === 0) return [];
    return kept.length === all.length ? [source] : [{ ...source, ordinals: encodeRanges(kept) }];
  });
}
