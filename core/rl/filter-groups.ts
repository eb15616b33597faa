import type { RunSpec } from '../../config/run-spec.ts';
import { judgeGroup, meanHistogram, solvedCounts, widenedBounds, type DifficultyBounds } from './difficulty.ts';
import { countFailures, isLost, type RoundFailures } from './failures.ts';
import { leavesNothing } from './filters.ts';
import { recordOutcomes, type EndState, type EndedRanges, encodeRanges } from './ledger.ts';
import type { ScoredGroup } from './rollout.ts';
import { groupOfSamples, isRoleAdvantage, roleAdvantages, samplesOf } from './agents.ts';
import { isCountedByRollouts } from './selection.ts';
import type { KeptGroups, ObjectRef, SamplingRound } from './run-state.ts';
import { oldestStepOf } from './staleness.ts';
import { rowsOfRollout, type TrajectorySettings } from './trajectories.ts';

/** What groups were like in one environment. */
export interface FilteredEnvironment {
  readonly failures: RoundFailures;
  readonly means: readonly number[];
}

export interface FilteredGroups {
  readonly kept: KeptGroups;
  readonly ended: EndedRanges;
  readonly solved: { readonly all: number; readonly none: number; readonly some: number };
  /** Groups by their mean reward, in the bins of `meanBins`. */
  readonly means?: readonly number[];
  /** Rollouts that have no reward, by cause. */
  readonly failures?: RoundFailures;
  /** The same for each environment that had groups in it; absent where the run has one. */
  readonly environments?: Readonly<Record<string, FilteredEnvironment>>;
  /** Of all groups that have rewards, kept or not, in what a batch is counted in; absent where it is so many groups. */
  readonly size?: number;
}

type FilterSettings = Pick<
  RunSpec,
  'filter' | 'minGroupSize' | 'environments' | 'tokenBatchSize' | 'rolloutsPerExample' | 'advantage'
> &
  TrajectorySettings;

/** A group is judged by the rollouts that have a reward, and dropped as failed where too few have one. */
export function filterGroups(
  groups: readonly ScoredGroup[],
  of: {
    readonly round: SamplingRound;
    readonly scored: ObjectRef;
    readonly spec: FilterSettings;
    /** Without the bounds that the config chose. */
    readonly widened?: boolean;
  },
): FilteredGroups {
  const { round, spec, widened = false } = of;
  const { minGroupSize } = spec;
  const filter = widened ? widenedBounds(spec.filter) : spec.filter;
  const rewards = groups.map(rewardsOf);
  const kept: ScoredGroup[] = [];
  const ended: { ordinal: number; state: EndState }[] = [];
  for (const group of groups) {
    const state = endStateOf(group, ownFilter(group, filter, spec), spec);
    if (state === null) kept.push(group);
    else ended.push({ ordinal: group.ordinal, state });
  }
  return {
    kept: keptGroups(kept, of),
    ended: recordOutcomes({ step: round.step, pendingBefore: [], issued: [], ended }).ended,
    solved: solvedCounts(rewards),
    means: meanHistogram(rewards),
    failures: countFailures(groups, minGroupSize),
    ...(isCounted(spec) ? { size: sum(groups.map((group) => sizeOf(group, spec))) } : {}),
    ...(spec.environments.length > 1 ? { environments: byEnvironment(groups, minGroupSize) } : {}),
  };
}

function keptGroups(
  kept: readonly ScoredGroup[],
  of: { readonly round: SamplingRound; readonly scored: ObjectRef; readonly spec: FilterSettings },
): KeptGroups {
  const { round, scored, spec } = of;
  const inOrder = kept.toSorted((a, b) => a.ordinal - b.ordinal);
  const oldest = inOrder.map(oldestStepOf);
  return {
    scored,
    policyStep: round.policyStep,
    ordinals: encodeRanges(inOrder.map(({ ordinal }) => ordinal)),
    ...(oldest.every((step) => step === round.policyStep) ? {} : { oldest }),
    ...(isCounted(spec) ? { sizes: inOrder.map((group) => sizeOf(group, spec)) } : {}),
  };
}

/** Whether a batch is what the sizes of its groups add up to. */
function isCounted(spec: FilterSettings): boolean {
  return spec.tokenBatchSize !== null || isCountedByRollouts(spec);
}

/**
 * Its rollouts with a reward, an episode of several trained agents as often as it has them, or tokens of the rows that these are
 * trained as; prompts count, as in prime-rl's `payload_tokens` (orchestrator/train_sink.py).
 */
function sizeOf({ rollouts }: ScoredGroup, settings: FilterSettings): number {
  const rewarded = rollouts.filter(({ reward }) => reward !== null).flatMap(samplesOf);
  if (settings.tokenBatchSize === null) return rewarded.length;
  const rows = rewarded.flatMap((rollout) => rowsOfRollout(rollout, settings).rows);
  return sum(rows.map(({ tokenIds }) => tokenIds.length));
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

function byEnvironment(
  groups: readonly ScoredGroup[],
  minGroupSize: number | null,
): Record<string, FilteredEnvironment> {
  const names = [...new Set(groups.map(({ environment }) => environment))].sort();
  return Object.fromEntries(
    names.map((name) => {
      const own = groups.filter(({ environment }) => environment === name);
      return [name, { failures: countFailures(own, minGroupSize), means: meanHistogram(own.map(rewardsOf)) }];
    }),
  );
}

function rewardsOf({ rollouts }: Pick<ScoredGroup, 'rollouts'>): (number | null)[] {
  return rollouts.map(({ reward }) => reward);
}

/** Groups of equal rewards teach something where more than advantages is learned, or a role's running mean is what they are compared with. */
function ownFilter(
  group: ScoredGroup,
  filter: DifficultyBounds,
  { environments, advantage }: Pick<FilterSettings, 'environments' | 'advantage'>,
): DifficultyBounds {
  const entry = environments.find(({ name }) => name === group.environment);
  const isTold = entry?.objective !== undefined || entry?.echo !== undefined;
  const isRunning = isRoleAdvantage(advantage) && entry?.advantage === undefined && advantage.type === 'rae';
  return isTold || isRunning ? { ...filter, keepsEqual: true } : filter;
}

function endStateOf(
  group: ScoredGroup,
  filter: DifficultyBounds,
  { minGroupSize, advantage }: Pick<FilterSettings, 'minGroupSize' | 'advantage'>,
): EndState | null {
  const broken = group.rollouts.find(({ reward }) => reward === null);
  if (broken && isLost(group, minGroupSize)) {
    return group.rollouts.some(({ outcome }) => outcome === 'stale') ? 'stale' : `failed:${broken.outcome}`;
  }
  if (leavesNothing(group)) return 'filtered:rollout_filters';
  const samples = groupOfSamples(group);
  const verdict = judgeGroup(rewardsOf(samples), filter);
  if (!verdict.kept) return `filtered:${verdict.reason}`;
  // Rewards of different roles differ though none has an advantage.
  const isEqual =
    filter.keepsEqual !== true &&
    isRoleAdvantage(advantage) &&
    roleAdvantages(samples, advantage).advantages.every((value) => value === 0);
  return isEqual ? 'filtered:no_signal' : null;
}
