import type { CurriculumState } from '../core/rl/curriculum.ts';
import { filterGroups, type FilteredGroups } from '../core/rl/filter-groups.ts';
import type { ScoredGroup } from '../core/rl/rollout.ts';
import type { ObjectRef, RunHandle, SamplingRound } from '../core/rl/run-state.ts';
import { curriculumAfter } from '../runs/pools.ts';
import { readRows, specOf } from '../runs/run-access.ts';

/**
 * Judges scored groups again, as `on_starvation = "widen"` asks, or moves their examples between pools, which is done in one order whoever
 * played them. Pure over stored objects, so twice is once.
 */
export async function filterAgain(input: {
  readonly run: RunHandle;
  readonly round: SamplingRound;
  readonly scored: ObjectRef;
  /** Without the bounds that the config chose. */
  readonly widened?: boolean;
  /** Of the round's lease: its examples move between pools. */
  readonly curriculum?: CurriculumState;
}): Promise<FilteredGroups & { readonly curriculum?: CurriculumState }> {
  const { run, round, scored, widened = false, curriculum } = input;
  const spec = await specOf(run);
  const groups = await readRows<ScoredGroup>(run, scored);
  return {
    ...filterGroups(groups, { round, scored, spec, widened }),
    ...(curriculum ? { curriculum: await curriculumAfter(run, curriculum, groups) } : {}),
  };
}
