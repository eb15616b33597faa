import { present } from '../../present.ts';
import type { RolloutFilters } from '../../settings/rollouts.ts';
import { allFlags } from '../filters/filters.ts';
import type { MeasuredRollout } from '../metrics.ts';
import type { EffectCounts } from './effects.ts';
import { oldestStepOf } from '../sampling/staleness.ts';
import type { GroupLease, Outcome, RolloutFlag, ScoredGroup, ScoredRollout } from './rollout.ts';

/** The part of a packed group that is kept: figures need no tokens. */
export interface GroupFacts extends GroupLease {
  /** Step of its oldest trained token. */
  readonly oldestStep: number;
  readonly rollouts: readonly RolloutFacts[];
}

interface RolloutFacts extends MeasuredRollout {
  readonly index: number;
  readonly outcome: Outcome;
  readonly prompt?: string;
  /** Billed tokens over all turns: each turn's prompt includes the turns before it. */
  readonly promptTokens: number;
  /** Its rubric gave a reward, which became 0 because it was truncated. */
  readonly isZeroed: boolean;
  readonly effects?: EffectCounts;
  readonly flags: readonly RolloutFlag[];
}

/** Calls `advantageOf` for rollouts with a reward. */
export function factsOfGroup(
  group: ScoredGroup,
  {
    advantageOf = () => 0,
    filters = { pre: [], post: [] },
  }: { readonly advantageOf?: (index: number) => number; readonly filters?: RolloutFilters } = {},
): GroupFacts {
  const { rollouts, ordinal, environment, exampleId, epoch, policyStep, prompt, temperature } = group;
  return {
    oldestStep: oldestStepOf(group),
    ordinal,
    environment,
    exampleId,
    epoch,
    policyStep,
    ...present({ prompt, temperature }),
    rollouts: rollouts.map((rollout) => {
      const { index, outcome, reward, metrics, turns } = rollout;
      return {
        index,
        outcome,
        reward,
        metrics,
        tokens: sampledTokens(rollout),
        promptTokens: promptTokens(rollout),
        turns: turns.length,
        ...present({
          prompt: rollout.prompt,
          isTimedOut: rollout.isTimedOut,
          overBudget: rollout.overBudget,
          effects: rollout.effects,
        }),
        isZeroed: rollout.rewardBeforeCut !== undefined,
        flags:
          reward === null
            ? []
            : allFlags(rollout, {
                advantage: advantageOf(index),
                filters,
              }),
      };
    }),
  };
}

function sampledTokens({ turns }: ScoredRollout): number {
  return turns.reduce((sum, { tokenIds }) => sum + tokenIds.length, 0);
}

function promptTokens({ turns }: ScoredRollout): number {
  return turns.reduce((sum, { promptTokenIds }) => sum + promptTokenIds.length, 0);
}
