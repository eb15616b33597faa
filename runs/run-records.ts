import { RatchetError } from '../core/errors.ts';
import { layout, stepOf } from './layout.ts';
import type { ScoredGroup } from '../core/rl/rollout/rollout.ts';
import { committedSteps, currentLineage, lineagesOf, type RunPlace, storeOf, stretchesOf } from './run-access.ts';
import { decodeStoredRows } from './forms/stored-forms.ts';
import { scoredShape } from './rollouts/scored-groups.ts';

export async function headStep(run: RunPlace): Promise<number> {
  const last = (await committedSteps({ ...run, lineage: await currentLineage(run) })).at(-1);
  if (last !== undefined) return last;
  throw new RatchetError(
    'RunNotFound',
    `Nothing is committed yet in ${storeOf(run).uri}: the run has not made its first version.`,
  );
}

/** Lineage of a step, among those that led to the run's position. */
export async function lineageOfStep(run: RunPlace, step: number): Promise<string> {
  const stretches = await stretchesOf({ ...run, lineage: await currentLineage(run) });
  return (stretches.find(({ from, upTo }) => step <= upTo && (step > from || from === 0)) ?? stretches[0]!).lineage;
}

/** Scored groups sampled for a step, by ordinal; for steps in progress, those scored already. */
export async function scoredGroups(run: RunPlace, step: number): Promise<ScoredGroup[]> {
  const store = storeOf(run);
  const keys = await store.list(layout.rounds(await lineageOfStep(run, step), step));
  const groups: ScoredGroup[] = [];
  for (const key of layout.scoredIn(keys)) {
    const bytes = await store.read(key);
    if (bytes) groups.push(...decodeStoredRows<ScoredGroup>(bytes, storeOf(run).uri + key, scoredShape));
  }
  return groups.sort((a, b) => a.ordinal - b.ordinal);
}

/** Steps that scored groups are stored for, in any lineage, ascending. */
export async function sampledSteps(run: RunPlace): Promise<number[]> {
  const lineages = await lineagesOf(run);
  const keys = await Promise.all(lineages.map((lineage) => storeOf(run).list(layout.allRounds(lineage))));
  const steps = new Set(keys.flat().flatMap((key) => (layout.isScored(key) ? [stepOf(key)] : [])));
  return [...steps].filter((step) => step !== null).sort((a, b) => a - b);
}
