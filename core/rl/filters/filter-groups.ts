import type { DifficultyBounds, TrajectorySettings } from '../../settings/rollouts.ts';
import type { RunSettings } from '../../settings/run.ts';
import { judgeGroup, meanHistogram, solvedCounts, widenedBounds } from './difficulty.ts';
import { countFailures, isLost, type RoundFailures } from '../failures.ts';
import { leavesNothing } from './filters.ts';
import { recordOutcomes, type EndState, type EndedRanges, encodeRanges } from '../ledger.ts';
import type { ScoredGroup } from '../rollout/rollout.ts';
import { groupOfSamples, isRoleAdvantage, roleAdvantages, samplesOf } from '../rollout/agents.ts';
import { isCountedByRollouts } from '../learning/selection.ts';
import type { KeptGroups, ObjectRef, SamplingRound } from '../run-state.ts';
import { oldestStepOf } from '../sampling/staleness.ts';
import { rowsOfRollout } from '../rollout/trajectories.ts';

/** Figures of groups in one environment. */
interface FilteredEnvironment {
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
  /** Results by environment, for those with groups; absent in a run with one. */
  readonly environments?: Readonly<Record<string, FilteredEnvironment>>;
  /** Size of all rewarded groups, kept or not, in the unit that counts a batch; absent if that unit is groups. */
  readonly size?: number;
}

type FilterSettings = Pick<
  RunSettings,
  'filter' | 'minGroupSize' | 'environments' | 'tokenBatchSize' | 'rolloutsPerExample' | 'advantage'
> &
  TrajectorySettings;

/** A group is judged by its rewarded rollouts, and dropped as failed if there are too few. */
export function filterGroups(
  groups: readonly ScoredGroup[],
  of: {
    readonly round: SamplingRound;
    readonly scored: ObjectRef;
    readonly spec: FilterSettings;
    /** Ignores the config's bounds. */
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

/** Whether the batch's size is a sum of its groups' sizes. */
function isCounted(spec: FilterSettings): boolean {
  return spec.tokenBatchSize !== null || isCountedByRollouts(spec);
}

/**
 * Size of a group: its rewarded rollouts, an episode of several trained agents counted once for each, or tokens of
 * their rows; prompts count, as in prime-rl's `payload_tokens` (orchestrator/train_sink.py).
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

/**
 * Groups with equal rewards teach something if the loss has other terms, or if a role's running mean is the baseline.
 */
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
