import type { RunSpec } from '../../config/run-spec.ts';
import { judgeGroup, meanHistogram, solvedCounts, widenedBounds, type DifficultyBounds } from './difficulty.ts';
import { countFailures, isLost, type RoundFailures } from './failures.ts';
import { leavesNothing } from './filters.ts';
import { recordOutcomes, type EndState, type EndedRanges, encodeRanges } from './ledger.ts';
import type { ScoredGroup } from './rollout.ts';
import type { KeptGroups, ObjectRef, SamplingRound } from './run-state.ts';

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
}

/** A group is judged by the rollouts that have a reward, and dropped as failed where too few have one. */
export function filterGroups(
  groups: readonly ScoredGroup[],
  of: {
    readonly round: SamplingRound;
    readonly scored: ObjectRef;
    readonly spec: Pick<RunSpec, 'filter' | 'minGroupSize' | 'environments'>;
    /** Without the bounds that the config chose. */
    readonly widened?: boolean;
  },
): FilteredGroups {
  const { round, scored, spec, widened = false } = of;
  const { minGroupSize } = spec;
  const filter = widened ? widenedBounds(spec.filter) : spec.filter;
  const rewards = groups.map(rewardsOf);
  const kept: number[] = [];
  const ended: { ordinal: number; state: EndState }[] = [];
  for (const group of groups) {
    const state = endStateOf(group, filter, minGroupSize);
    if (state === null) kept.push(group.ordinal);
    else ended.push({ ordinal: group.ordinal, state });
  }
  return {
    kept: { scored, policyStep: round.policyStep, ordinals: encodeRanges(kept) },
    ended: recordOutcomes({ step: round.step, pendingBefore: [], issued: [], ended }).ended,
    solved: solvedCounts(rewards),
    means: meanHistogram(rewards),
    failures: countFailures(groups, minGroupSize),
    ...(spec.environments.length > 1 ? { environments: byEnvironment(groups, minGroupSize) } : {}),
  };
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

function rewardsOf({ rollouts }: ScoredGroup): (number | null)[] {
  return rollouts.map(({ reward }) => reward);
}

function endStateOf(group: ScoredGroup, filter: DifficultyBounds, minGroupSize: number | null): EndState | null {
  const broken = group.rollouts.find(({ reward }) => reward === null);
  if (broken && isLost(group, minGroupSize)) return `failed:${broken.outcome}`;
  if (leavesNothing(group)) return 'filtered:rollout_filters';
  const verdict = judgeGroup(rewardsOf(group), filter);
  return verdict.kept ? null : `filtered:${verdict.reason}`;
}
