import type { Example, Rollout, RolloutRow, ScoredRollout } from '../../core/rl/rollout/rollout.ts';

/** A stored group that is scored again, of a run or of an evaluation. */
export interface StoredGroup {
  /** Lineage of a run; '' in an evaluation. */
  readonly lineage: string;
  /** The step that a run sampled it for; null in an evaluation. */
  readonly step: number | null;
  readonly environment: string;
  /** The group's ordinal, or the example's position. */
  readonly group: number;
  readonly exampleId: number;
  readonly dataset: 'dataset' | 'evalDataset';
  /** Each rollout is scored by itself, not with its group. */
  readonly isIndependent: boolean;
  readonly rolloutsPerExample: number;
  /** With the rewards that they have. `record` is the environment's own row, if it writes rows. */
  readonly rollouts: readonly ScoredRollout[];
  /** As they were before they were scored. */
  unscored(rollout: ScoredRollout): Rollout;
  /** As the rollouts saw it. */
  example(): Promise<Example>;
  /** What a rubric's reward becomes where it is stored: a run's settings may set it to 0. */
  settle(rollout: ScoredRollout): Promise<ScoredRollout>;
  /** Rows for people. `asked`: indices of those that the rubric was asked about. */
  rows(rollouts: readonly ScoredRollout[], asked: ReadonlySet<number>): Promise<readonly RolloutRow[]>;
}
