import { RatchetError } from '../../core/errors.ts';
import type { JudgeUse, RescoredGroup, RescoredRollout } from '../../core/eval/rescore.ts';
import { present } from '../../core/present.ts';
import type { ScoredRollout } from '../../core/rl/rollout/rollout.ts';
import type { StoredGroup } from './stored-group.ts';

export function nameOf({
  lineage,
  environment,
  group,
}: Pick<RescoredGroup, 'lineage' | 'environment' | 'group'>): string {
  return `${lineage}/${group}/${environment}`;
}

export function rescoredGroup(of: StoredGroup, after: readonly ScoredRollout[]): RescoredGroup {
  const { lineage, environment, group, exampleId } = of;
  const before = new Map(of.rollouts.map(({ index, outcome, reward }) => [index, { outcome, reward }]));
  const rollouts = after.map(
    ({ index, outcome, reward, metrics, turnRewards, raised, traces, flags, rewardBeforeCut, error }): RescoredRollout => ({
      index,
      before: before.get(index)!,
      outcome,
      reward,
      metrics,
      ...present({ turnRewards, raised, traces, flags, rewardBeforeCut, error }),
    }), // prettier-ignore
  );
  return { lineage, environment, group, exampleId, rollouts };
}

/** The scores of an earlier attempt. */
export function withKnown(group: StoredGroup, known: RescoredGroup): readonly ScoredRollout[] {
  return group.rollouts.map((rollout) => withScore(rollout, known, group));
}

/** A rollout with the score that a rescore gave it; as it is if the rescore does not know it. */
function withScore(
  rollout: ScoredRollout,
  { rollouts }: Pick<RescoredGroup, 'rollouts'>,
  { unscored }: Pick<StoredGroup, 'unscored'>,
): ScoredRollout {
  const found = rollouts.find(({ index }) => index === rollout.index);
  if (found === undefined) return rollout;
  const { before: _, ...score } = found;
  const { error: __, ...played } = unscored(rollout);
  return { ...played, ...score } as ScoredRollout;
}

/** In an episode of several agents each of them learns from a reward of its own. */
export function requireTraces({ environment, rollouts }: StoredGroup, after: readonly ScoredRollout[]): void {
  const lost = after.find(({ reward, traces }, i) => reward !== null && traces === undefined && rollouts[i]!.traces !== undefined); // prettier-ignore
  if (lost === undefined) return;
  throw new RatchetError(
    'Unsupported',
    `${environment} has episodes of several agents, each with a reward of its own; this rubric gives one reward for all. Use a rubric of verifiers v1 that scores each.`,
  );
}

export function sumOfUse(uses: readonly JudgeUse[]): JudgeUse {
  return uses.reduce((sum, { calls, tokens }) => ({ calls: sum.calls + calls, tokens: sum.tokens + tokens }), { calls: 0, tokens: 0 }); // prettier-ignore
}
