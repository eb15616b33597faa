import type { RunSpec } from '../../config/run-spec.ts';
import { meanReward, sampleOf } from './agents.ts';
import { ownFlags } from './filters.ts';
import type { RewardedRollout, ScoredRollout } from './rollout.ts';
import { isCut, missingTokens } from './trajectories.ts';

export type SettleSettings = Pick<RunSpec, 'zeroTruncated' | 'trajectoryStrategy' | 'seqLen' | 'rolloutFilters'>;

/**
 * What training makes of a rollout that has its rewards. Without the token ids of its turns it is `rejected`, which is no
 * reward: it is not trained, and the cause counted. The same goes for a reward that is no finite number; its group goes on without it. One that was cut gets the reward 0 where the config says so, as
 * verifiers' trainer does it; its metrics stay. Filters that look at it by itself leave their flags.
 */
export function settleRollout(rollout: ScoredRollout, settings: SettleSettings, vocabularySize: number): ScoredRollout {
  if (rollout.reward === null) return rollout;
  if (!Number.isFinite(rollout.reward)) {
    const error = `The reward is ${rollout.reward}: expected a finite number.`;
    return { ...rollout, outcome: 'judge_failure', reward: null, error };
  }
  const missing = missingTokens(rollout);
  if (missing !== null) return { ...rollout, outcome: 'rejected', reward: null, error: missing };
  const flags = ownFlags(rollout, settings.rolloutFilters, vocabularySize);
  return {
    ...(settings.zeroTruncated ? withCutZeroed(rollout, settings) : rollout),
    ...(flags.length === 0 ? {} : { flags }),
  };
}

/** Of several agents those that were cut get 0, and their episode the mean. */
function withCutZeroed(rollout: RewardedRollout, settings: SettleSettings): RewardedRollout {
  const { turnRewards: _, ...others } = rollout;
  if (rollout.traces === undefined) {
    return isCut(rollout, settings) ? { ...others, reward: 0, rewardBeforeCut: rollout.reward } : rollout;
  }
  const traces = rollout.traces.map((trace, at) =>
    isCut(sampleOf(rollout, trace, at), settings) ? { ...trace, reward: 0 } : trace,
  );
  const reward = meanReward(traces);
  return reward === rollout.reward ? rollout : { ...others, traces, reward, rewardBeforeCut: rollout.reward };
}

/** Whether a filter needs to know how many tokens the model has. */
export function needsVocabulary({ rolloutFilters: { pre, post } }: Pick<RunSpec, 'rolloutFilters'>): boolean {
  return [...pre, ...post].some(({ type }) => type === 'gibberish');
}
