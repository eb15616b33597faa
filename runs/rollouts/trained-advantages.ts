import { rowsAtOnceTokensMax } from '../../core/limits.ts';
import { groupOfSamples } from '../../core/rl/rollout/agents.ts';
import { windowsOf } from '../../core/rl/learning/batch.ts';
import { decodeRanges } from '../../core/rl/ledger.ts';
import { creditsInTotal, type GroupAdvantages } from '../../core/rl/learning/pack.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import type { StepPlan } from '../../core/rl/run-state.ts';
import { orIfDamaged } from '../../store/objects.ts';
import { openBatch } from './batches.ts';
import { rolloutsOfStep } from '../rollout-index/write-index.ts';
import { type LineagePlace, readCommit, readJson, storeOf } from '../run-access.ts';
import { scoredShape } from './scored-groups.ts';
import { decodeStoredRows } from '../forms/stored-forms.ts';

/** How a group ended, and with which step. */
export interface GroupEnd {
  readonly step: number;
  /** Fate in the ledger: `trained`, `filtered:too_easy`. */
  readonly end: string;
}

/** Ends of the groups that ended with a step, by ordinal. Empty if the step is not committed. */
export async function endsOfStep(place: LineagePlace, step: number): Promise<ReadonlyMap<number, GroupEnd>> {
  const found = await readCommit(place, step);
  const ends = new Map<number, GroupEnd>();
  for (const [end, ranges] of Object.entries(found?.commit.outcomes.ended ?? {}))
    for (const ordinal of decodeRanges(ranges ?? '')) ends.set(ordinal, { step, end });
  return ends;
}

/** Groups of a step's batch in order, without texts, since a batch may be large. Removed groups are missing. */
export async function groupsOfBatch(place: LineagePlace, step: number): Promise<readonly ScoredGroup[]> {
  const rows = (await rolloutsOfStep(place, step)).filter(({ end }) => end === 'trained');
  const wanted = new Set(rows.map(({ group }) => group));
  const groups: ScoredGroup[] = [];
  for (const key of new Set(rows.map(({ object }) => object))) {
    const bytes = await storeOf(place).read(key);
    if (bytes === null) continue;
    for (const group of decodeStoredRows<ScoredGroup>(bytes, storeOf(place).uri + key, scoredShape))
      if (wanted.has(group.ordinal)) groups.push(withoutTurns(group));
  }
  return groups.sort((a, b) => a.ordinal - b.ordinal);
}

function withoutTurns(group: ScoredGroup): ScoredGroup {
  return { ...group, rollouts: group.rollouts.map((rollout) => ({ ...rollout, turns: [] })) };
}

/**
 * Advantages that each rollout of a step's batch was trained with, by the ordinal of its group, read from the batch's
 * rows. Rollouts without a trained row are missing. Returns a reason when the batch, or a group of it, was removed.
 */
export async function trainedAdvantages(
  place: LineagePlace,
  step: number,
): Promise<ReadonlyMap<number, GroupAdvantages> | string> {
  const found = await readCommit(place, step);
  if (!found?.commit.plan) return `step ${step} has no batch`;
  const { plan } = found.commit;
  const groups = await groupsOfBatch(place, step);
  const trained = [...(await endsOfStep(place, step)).values()].filter(({ end }) => end === 'trained');
  if (groups.length < trained.length) return `some groups of step ${step} are not stored any more`;
  return orIfDamaged<ReadonlyMap<number, GroupAdvantages> | string>(
    async () => inGroups(groups, await ofRollouts(place, await readJson<StepPlan>(place, plan))),
    (why) => Promise.resolve(`the batch of step ${step} cannot be read: ${why}`),
  );
}

/** Mean advantage over trained tokens, keyed by the rollout's index in the batch. */
async function ofRollouts(place: LineagePlace, plan: StepPlan): Promise<ReadonlyMap<number, number>> {
  const batch = await openBatch(place, plan);
  const sums = new Map<number, { sum: number; count: number }>();
  for (const places of windowsOf(batch.rows, rowsAtOnceTokensMax)) {
    for (const [i, { advantages, lossMask }] of (await batch.read(places)).entries()) {
      const row = places[i]!;
      const rollout = batch.rows[row]!.rollout?.index ?? row;
      const { sum, count } = sums.get(rollout) ?? { sum: 0, count: 0 };
      const counted = advantages.filter((_, t) => lossMask[t] === 1);
      if (counted.length === 0) continue;
      sums.set(rollout, { sum: sum + counted.reduce((a, b) => a + b), count: count + counted.length });
    }
  }
  return new Map([...sums].map(([rollout, { sum, count }]) => [rollout, sum / count]));
}

/** Rollouts are numbered as they are packed: group by group, agent by agent, those without a reward left out. */
function inGroups(
  groups: readonly ScoredGroup[],
  advantages: ReadonlyMap<number, number>,
): ReadonlyMap<number, GroupAdvantages> {
  let next = 0;
  return new Map(
    groups.map((group) => {
      const samples = groupOfSamples(group).rollouts.flatMap((sample) => {
        const advantage = sample.reward === null ? 0 : advantages.get(next++);
        return advantage === undefined ? [] : [{ sample, advantage }];
      });
      const told = creditsInTotal(
        samples.map(({ sample }) => sample),
        samples.map(({ advantage }) => advantage),
      );
      return [group.ordinal, told];
    }),
  );
}
