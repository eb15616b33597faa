import type { JsonValue } from '../json-value.ts';
import type { AdvantageKind } from './learning.ts';

/** How rollouts are generated, and which of them are trained. The schemas in config/settings/ make these. */

export interface SamplingSettings {
  readonly maxTokens: number;
  readonly contextTokens?: number | undefined;
  readonly temperature: number;
  readonly topP: number;
  /** null = all tokens may be drawn. */
  readonly topK: number | null;
  readonly minP: number;
  readonly repetitionPenalty: number;
  readonly presencePenalty: number;
  readonly frequencyPenalty: number;
  readonly minTokens: number;
  readonly stop: readonly string[];
  /** Variables of the chat template. */
  readonly templateArguments: Readonly<Record<string, JsonValue>>;
  readonly seed: number | null;
}

/** The temperature of training rollouts, step by step (`temperatureAt`). */
export interface TemperatureSchedule {
  readonly type: 'linear' | 'cosine';
  readonly startTemperature: number;
  readonly endTemperature: number;
  readonly totalSteps: number | null;
}

/** Difficulty pools of an environment. */
export interface PoolSettings {
  /** null = no example gets into the pool. */
  readonly easyThreshold: number | null;
  readonly hardThreshold: number | null;
  /** How often examples of a pool are drawn, where normal ones are drawn once. */
  readonly easyFraction: number;
  readonly hardFraction: number;
}

/** Weights, by role, of the cross entropy of the environment's messages; roles that are not named have none. */
export interface EchoWeights {
  readonly system?: number | undefined;
  readonly user?: number | undefined;
  readonly assistant?: number | undefined;
  readonly tool?: number | undefined;
}

/** Trained part of an environment. */
export interface TrainedEnvironment {
  readonly name: string;
  /** Relative probability of drawing an example from it. */
  readonly weight: number;
  /** Absent = the run's. */
  readonly rolloutsPerExample?: number | undefined;
  readonly sampling?: Pick<SamplingSettings, 'temperature'> | undefined;
  readonly advantage?: AdvantageKind | undefined;
  /** Its rollouts are learned from the teacher alone; absent = by the run's loss. */
  readonly objective?: 'ref_kl' | undefined;
  readonly echo?: EchoWeights | undefined;
}

/** A group is kept when its population variance of rewards is ≥ minRewardVariance and minReward ≤ mean ≤ maxReward. */
export interface DifficultyBounds {
  readonly minRewardVariance: number;
  readonly minReward: number;
  readonly maxReward: number;
  readonly onlineDifficultyFiltering: boolean;
  /** Keeps groups whose rewards are all equal. */
  readonly keepsEqual?: boolean | undefined;
}

/** A filter of single rollouts; without `enforce` what it flags is only counted (core/rl/filters/filters.ts). */
export type RolloutFilter =
  | {
      readonly type: 'gibberish';
      readonly enforce: boolean;
      readonly tokenIdThreshold: number;
      readonly logprobOffset: number;
    }
  | {
      readonly type: 'repetition';
      readonly enforce: boolean;
      readonly window: number;
      readonly probThreshold: number;
    }
  | { readonly type: 'zero_advantage'; readonly enforce: boolean }
  | { readonly type: 'low_reward'; readonly enforce: boolean; readonly minReward: number };

export interface RolloutFilters {
  /** Before a batch is filled. */
  readonly pre: readonly RolloutFilter[];
  readonly post: readonly RolloutFilter[];
}

/** How the turns of a rollout become rows. */
export interface TrajectorySettings {
  readonly trajectoryStrategy: 'interleaved' | 'branching';
  readonly maskTruncated: boolean;
  /** null = rows are as long as they are. */
  readonly seqLen: number | null;
  readonly overlongRows: 'truncate' | 'mask' | 'drop';
}
