import type { RunSettings } from '../../settings/run.ts';
import { meanReward, sampleOf } from './agents.ts';
import { ownFlags } from '../filters/filters.ts';
import type { RewardedRollout, ScoredRollout } from './rollout.ts';
import { isCut, missingTokens } from './trajectories.ts';

export type SettleSettings = Pick<RunSettings, 'zeroTruncated' | 'trajectoryStrategy' | 'seqLen' | 'rolloutFilters'>;

/**
 * Prepares a rewarded rollout for training. Without token ids of its turns it becomes `rejected`, which is no reward:
 * it is not trained on, and the cause is counted. The same holds for a reward that is no finite number; its group
 * continues without it. A truncated one gets the reward 0 if the config says so, as in verifiers' trainer; its metrics
 * stay. Filters of single rollouts add their flags.
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

/** In an episode of several agents each truncated one gets 0, and the episode their mean. */
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
export function needsVocabulary({ rolloutFilters: { pre, post } }: Pick<RunSettings, 'rolloutFilters'>): boolean {
  return [...pre, ...post].some(({ type }) => type === 'gibberish');
}
