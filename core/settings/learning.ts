import type { PolicyLossType } from '../rl/losses.ts';
import type { CodeRef } from './code.ts';

/** How a batch is learned. The schemas in config/settings/ make these, with a range and a default for each field. */

/** Advantages without settings. */
export const advantageKinds = ['centered', 'std_normalized', 'max_rl'] as const;
export type AdvantageKind = (typeof advantageKinds)[number];

/** Advantages of episodes of several trained agents, each by its role (core/rl/rollout/agents.ts). */
export type RoleAdvantage =
  | { readonly type: 'rae'; readonly decay: number }
  | { readonly type: 'hierarchical_grpo'; readonly episodeAgents: readonly string[] };
export const roleAdvantages = ['rae', 'hierarchical_grpo'] as const satisfies readonly RoleAdvantage['type'][];

export type AdvantageSettings = AdvantageKind | RoleAdvantage | { readonly import: CodeRef };

type Bounds = readonly [low: number, high: number];

/** verl's names of what its `rollout_rs` bounds from above: of tokens, or the sum, mean or largest over a row. */
export const divergenceNames = [
  'token_k2',
  'token_k3',
  'seq_sum_k2',
  'seq_sum_k3',
  'seq_mean_k2',
  'seq_mean_k3',
  'seq_max_k2',
  'seq_max_k3',
] as const;
export type DivergenceName = (typeof divergenceNames)[number];

/** The formulas stand in core/rl/learning/correction.ts. */
export interface CorrectionSettings {
  readonly weight: 'token' | 'sequence' | 'none';
  readonly weightMin: number;
  readonly weightMax: number;
  readonly tokenMask: Bounds | null;
  readonly sequenceMask: Bounds | null;
  readonly geometricMask: Bounds | null;
  readonly extremeMask: Bounds | null;
  /** The most that each divergence may be; absent = no bound. */
  readonly divergenceMask?: Partial<Readonly<Record<DivergenceName, number>>> | undefined;
}

/** Whose log probabilities the ratio of the loss is taken to. */
export type OldLogprobs = 'sampler' | 'trainer';

/** A loss; a field that is left out has the default of LossSpec (config/settings/learning.ts), where the formulas stand. */
export interface LossSettings {
  readonly type: PolicyLossType | 'cross_entropy';
  readonly clipLow?: number | undefined;
  readonly clipHigh: number;
  readonly maskLow?: number | undefined;
  readonly maskHigh?: number | null | undefined;
  readonly klTau?: number | undefined;
  readonly ratioMax?: number | undefined;
  readonly advantageTau?: number | undefined;
  readonly teacherTau?: number | undefined;
  readonly aggregation: 'token' | 'sequence' | 'dr_grpo';
  readonly oldLogprobs?: OldLogprobs | undefined;
  readonly entropyCoef?: number | undefined;
  readonly maxTokens?: number | null | undefined;
  readonly correction?: Partial<CorrectionSettings> | undefined;
  readonly import?: CodeRef | null | undefined;
}

export interface OptimizerSettings {
  /** Absent = AdamW. */
  readonly type?: 'adamw' | 'muon' | 'sgd' | 'sign_sgd' | undefined;
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
  readonly momentum?: number | undefined;
  readonly nesterov?: boolean | undefined;
  readonly weightDecay: number;
  readonly decayMatricesOnly?: boolean | undefined;
  readonly maxGradNorm: number;
}

/** The formulas stand in core/rl/sampling/schedule.ts. */
export interface ScheduleSettings {
  readonly type: 'constant' | 'linear' | 'cosine';
  readonly warmupSteps: number;
  readonly warmupFrom?: number | undefined;
  readonly decaySteps?: number | undefined;
  readonly minRatio: number;
  readonly minLrAtEnd?: boolean | undefined;
}
