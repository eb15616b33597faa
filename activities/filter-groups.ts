import type { CurriculumState } from '../core/rl/sampling/curriculum.ts';
import { filterGroups, type FilteredGroups } from '../core/rl/filters/filter-groups.ts';
import type { ScoredGroup } from '../core/rl/rollout/rollout.ts';
import type { ObjectRef, RunHandle, SamplingRound } from '../core/rl/run-state.ts';
import { curriculumAfter } from '../runs/rollouts/pools.ts';
import { readRows, specOf } from '../runs/run-access.ts';

/**
 * Filters scored groups again, as `on_starvation = "widen"` asks, or moves their examples between pools, in one order
 * whatever worker generated them. Idempotent, since it depends on stored objects only.
 */
export async function filterAgain(input: {
  readonly run: RunHandle;
  readonly round: SamplingRound;
  readonly scored: ObjectRef;
  /** Without the bounds that the config chose. */
  readonly widened?: boolean;
  /** Curriculum of the round's lease, whose examples move between pools. */
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
