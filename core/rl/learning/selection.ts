import type { BatchFill, RunSettings } from '../../settings/run.ts';
import type { TrainedEnvironment } from '../../settings/rollouts.ts';
import { isRoleAdvantage } from '../rollout/agents.ts';
import { decodeRanges, encodeRanges } from '../ledger.ts';
import { restrictKept } from '../rollout/played-part.ts';
import type { KeptGroups } from '../run-state.ts';
import { isStale, oldestSteps } from '../sampling/staleness.ts';

/**
 * Size of a step's batch: a number of groups; or groups until their sizes reach a total, with `groups` as an estimate.
 */
export interface BatchSize {
  readonly groups: number;
  /** Total of tokens in rows, or of rollouts if groups differ in their number. */
  readonly total: number | null;
}

type Sizes = Pick<RunSettings, 'batchSize' | 'rolloutsPerExample' | 'tokenBatchSize' | 'environments' | 'advantage'>;

export function batchSizeOf(spec: Sizes): BatchSize {
  const { batchSize, tokenBatchSize } = spec;
  if (!isCountedByRollouts(spec)) return { groups: batchSize / spec.rolloutsPerExample, total: tokenBatchSize };
  const groups = Math.ceil(batchSize / (rolloutsPerGroup(spec) * (isRoleAdvantage(spec.advantage) ? agentsMin : 1)));
  return { groups, total: tokenBatchSize ?? batchSize };
}

/** Estimated trained agents of an episode before one was seen: a file that names roles has two at least. */
const agentsMin = 2;

/**
 * Whether a batch is counted in rollouts: groups differ in their number, or the trained agents of an episode count by
 * themselves, as in prime-rl's batch of traces (orchestrator/train_sink.py).
 */
export function isCountedByRollouts(spec: Pick<Sizes, 'rolloutsPerExample' | 'environments' | 'advantage'>): boolean {
  return differInGroups(spec) || isRoleAdvantage(spec.advantage);
}

type Group = Pick<RunSettings, 'rolloutsPerExample' | 'environments'>;

/** How many rollouts a group of an environment has. */
export function groupSizeOf({ environments, rolloutsPerExample }: Group, environment: string): number {
  return environments.find(({ name }) => name === environment)?.rolloutsPerExample ?? rolloutsPerExample;
}

/** Whether environments have groups of other sizes than the run's. */
export function differInGroups({ environments }: Group): boolean {
  return environments.some((entry) => entry.rolloutsPerExample !== undefined);
}

/** Mean over the environments, as often as they are drawn. */
export function rolloutsPerGroup({ environments, rolloutsPerExample }: Group): number {
  if (!differInGroups({ environments, rolloutsPerExample })) return rolloutsPerExample;
  const sum = (of: (entry: TrainedEnvironment) => number): number =>
    environments.reduce((total, entry) => total + of(entry), 0);
  return sum(({ weight, rolloutsPerExample: own = rolloutsPerExample }) => weight * own) / sum(({ weight }) => weight);
}

/** How a step divides the kept groups at hand. All ordinals are ranges. */
export interface Selection {
  readonly trained: readonly KeptGroups[];
  /** How much of a batch `trained` is: 1 = a whole one. */
  readonly share: number;
  /** Groups of a whole batch; if their sizes add up to one, an estimate from those at hand. */
  readonly groupsPerBatch: number;
  readonly surplus: readonly KeptGroups[];
  readonly stale: string;
}

/**
 * Smallest share of a batch that a step trains on if it may be partial, and after the difficulty filter was widened:
 * whatever there is near the end.
 */
const batchShareMin = { partial: 1 / 2, widened: 1 / 8 };

/** Whether a step trains on the ready groups, rather than sample again. */
export function isBatch(input: {
  /** How much of a batch is ready. */
  readonly share: number;
  /** False if only surplus is at hand; surplus alone makes whole batches only. */
  readonly hasSampled: boolean;
  readonly isWidened: boolean;
  readonly fill: BatchFill;
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
 * Takes the oldest groups first, by ordinal and not by arrival, so that a resumed run takes the same. Groups beyond the
 * batch wait for the next step; groups too old for this step are stale. A batch counted in tokens or rollouts ends
 * after the first group that reaches the total.
 */
export function selectGroups(input: {
  readonly step: number;
  readonly size: BatchSize;
  readonly maxOffPolicySteps: number;
  readonly kept: readonly KeptGroups[];
}): Selection {
  const { step, size, maxOffPolicySteps, kept } = input;
  const stale = kept.flatMap((source) =>
    oldestSteps(source).flatMap(([ordinal, oldest]) => (isStale(oldest, step, maxOffPolicySteps) ? [ordinal] : [])),
  );
  const tooOld = new Set(stale);
  const usable = restrict(kept, (ordinal) => !tooOld.has(ordinal));
  const cut = size.total === null ? cutByGroups(usable, size.groups) : cutBySize(usable, size.total, size.groups);
  const { taken, share, groupsPerBatch } = cut;
  return {
    share,
    groupsPerBatch,
    trained: restrict(usable, (ordinal) => taken.has(ordinal)),
    surplus: restrict(usable, (ordinal) => !taken.has(ordinal)),
    stale: encodeRanges(stale),
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

function cutBySize(usable: readonly KeptGroups[], target: number, guess: number): Cut {
  // Groups kept before the run had `token_batch_size` count as the estimated size.
  const all = usable.flatMap(({ ordinals, sizes }) =>
    decodeRanges(ordinals).map((ordinal, i) => [ordinal, sizes?.[i] ?? target / guess] as const),
  );
  const taken = new Set<number>();
  let held = 0;
  for (const [ordinal, size] of all.sort(([a], [b]) => a - b)) {
    if (held >= target) break;
    taken.add(ordinal);
    held += size;
  }
  const share = Math.min(1, held / target);
  // Estimates the rest from the sizes at hand; an incomplete batch needs at least one more.
  const wanted = held === 0 ? guess : Math.ceil((taken.size * target) / held);
  return { taken, share, groupsPerBatch: share === 1 ? taken.size : Math.max(wanted, taken.size + 1) };
}

export function countGroups(sources: readonly KeptGroups[]): number {
  return sources.reduce((sum, source) => sum + decodeRanges(source.ordinals).length, 0);
}

/** Ordinal of the group issued last; 0 without any. */
export function youngestOf(sources: readonly KeptGroups[]): number {
  return sources.flatMap(({ ordinals }) => decodeRanges(ordinals)).reduce((most, one) => Math.max(most, one), 0);
}

function restrict(sources: readonly KeptGroups[], keep: (ordinal: number) => boolean): KeptGroups[] {
  return sources.map((source) => restrictKept(source, keep)).filter(({ ordinals }) => ordinals !== '');
}
