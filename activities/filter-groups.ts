import {
  judgeGroup,
  meanHistogram,
  solvedCounts,
  widenedBounds,
  type DifficultyBounds,
} from '../core/rl/difficulty.ts';
import type { CurriculumState } from '../core/rl/curriculum.ts';
import { leavesNothing } from '../core/rl/filters.ts';
import { countFailures, isLost, type RoundFailures } from '../core/rl/failures.ts';
import { recordOutcomes, type EndState, type EndedRanges, encodeRanges } from '../core/rl/ledger.ts';
import type { ScoredGroup } from '../core/rl/rollout.ts';
import type { KeptGroups, ObjectRef, RunHandle, SamplingRound } from '../core/rl/run-state.ts';
import { curriculumAfter } from '../runs/pools.ts';
import { readRows, specOf } from '../runs/run-access.ts';

/** What a round was like in one environment. */
export interface FilteredEnvironment {
  readonly failures: RoundFailures;
  readonly means: readonly number[];
}

export interface FilteredRound {
  readonly kept: KeptGroups;
  readonly ended: EndedRanges;
  readonly solved: { readonly all: number; readonly none: number; readonly some: number };
  /** Groups by their mean reward, in the bins of `meanBins`. */
  readonly means?: readonly number[];
  /** Rollouts that have no reward, by cause. */
  readonly failures?: RoundFailures;
  /** The same for each environment that had groups in it; absent where the run has one. */
  readonly environments?: Readonly<Record<string, FilteredEnvironment>>;
  /** The one that was asked about, with examples in the pools that these groups put them into. */
  readonly curriculum?: CurriculumState;
}

/**
 * Difficulty filter over one scored round. A group is judged by the rollouts that have a reward, and dropped as failed where
 * too few have one. Pure over stored objects, so twice is once.
 */
export async function filterGroups(input: {
  readonly run: RunHandle;
  readonly round: SamplingRound;
  readonly scored: ObjectRef;
  /** Without the bounds that the config chose: `on_starvation = "widen"`. */
  readonly widened?: boolean;
  /** Of the round's lease: its examples move between pools. */
  readonly curriculum?: CurriculumState;
}): Promise<FilteredRound> {
  const spec = await specOf(input.run);
  const filter = input.widened === true ? widenedBounds(spec.filter) : spec.filter;
  const groups = await readRows<ScoredGroup>(input.run, input.scored);
  const rewards = groups.map(rewardsOf);
  const kept: number[] = [];
  const ended: { ordinal: number; state: EndState }[] = [];
  for (const group of groups) {
    const state = endStateOf(group, filter);
    if (state === null) kept.push(group.ordinal);
    else ended.push({ ordinal: group.ordinal, state });
  }
  return {
    kept: { scored: input.scored, policyStep: input.round.policyStep, ordinals: encodeRanges(kept) },
    ended: recordOutcomes({ step: input.round.step, pendingBefore: [], issued: [], ended }).ended,
    solved: solvedCounts(rewards),
    means: meanHistogram(rewards),
    failures: countFailures(groups),
    ...(spec.environments.length > 1 ? { environments: byEnvironment(groups) } : {}),
    ...(input.curriculum ? { curriculum: await curriculumAfter(input.run, input.curriculum, groups) } : {}),
  };
}

function byEnvironment(groups: readonly ScoredGroup[]): Record<string, FilteredEnvironment> {
  const names = [...new Set(groups.map(({ environment }) => environment))].sort();
  return Object.fromEntries(
    names.map((name) => {
      const own = groups.filter(({ environment }) => environment === name);
      return [name, { failures: countFailures(own), means: meanHistogram(own.map(rewardsOf)) }];
    }),
  );
}

function rewardsOf({ rollouts }: ScoredGroup): (number | null)[] {
  return rollouts.map(({ reward }) => reward);
}

function endStateOf(group: ScoredGroup, filter: DifficultyBounds): EndState | null {
  const broken = group.rollouts.find(({ reward }) => reward === null);
  if (broken && isLost(group)) return `failed:${broken.outcome}`;
  if (leavesNothing(group)) return 'filtered:rollout_filters';
  const verdict = judgeGroup(rewardsOf(group), filter);
  return verdict.kept ? null : `filtered:${verdict.reason}`;
}
