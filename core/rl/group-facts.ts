import { present } from '../present.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { allFlags } from './filters.ts';
import type { MeasuredRollout } from './metrics.ts';
import { oldestStepOf } from './staleness.ts';
import type { GroupLease, Outcome, RolloutFlag, ScoredGroup, ScoredRollout } from './rollout.ts';

/** What is kept of a group once it is packed: its figures need no tokens. */
export interface GroupFacts extends GroupLease {
  /** Of its oldest trained token. */
  readonly oldestStep: number;
  readonly rollouts: readonly RolloutFacts[];
}

interface RolloutFacts extends MeasuredRollout {
  readonly index: number;
  readonly outcome: Outcome;
  readonly prompt?: string;
  /** Over all turns, as a server bills them: each turn's prompt holds the turns before it. */
  readonly promptTokens: number;
  /** Its rubric gave it a reward, and it has 0 because it was cut. */
  readonly isZeroed: boolean;
  /** Of all filters. */
  readonly flags: readonly RolloutFlag[];
}

/** `advantageOf` is asked for those with a reward. */
export function factsOfGroup(
  group: ScoredGroup,
  {
    advantageOf = () => 0,
    filters = { pre: [], post: [] },
  }: { readonly advantageOf?: (index: number) => number; readonly filters?: RunSpec['rolloutFilters'] } = {},
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
        ...(rollout.prompt === undefined ? {} : { prompt: rollout.prompt }),
        ...present({ isTimedOut: rollout.isTimedOut }),
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
