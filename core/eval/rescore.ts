import type { ObjectRef } from '../rl/run-state.ts';
import type { AgentTrace, Outcome, RolloutFlag } from '../rl/rollout/rollout.ts';
import type { EvaluatedEnvironment, EvaluationPlace, EvaluationTally } from './evaluation.ts';
import type { RescoreFigures } from './rescore-figures.ts';

/** The nouns of a rescore: other rewards for rollouts that are stored. Plain data, as in history. */

/** Whose rollouts are rescored. */
export type RescoreSubject =
  | {
      readonly kind: 'run';
      readonly name: string;
      readonly store: string;
      /** Steps for which the rollouts were sampled, both included. */
      readonly steps: { readonly first: number; readonly last: number };
    }
  | { readonly kind: 'evaluation'; readonly place: EvaluationPlace };

/** Questions to judges and the tokens of their answers, prompts included. Only judges of TypeScript rubrics count. */
export interface JudgeUse {
  readonly calls: number;
  readonly tokens: number;
}

/** Input of one workflow `rescore`. */
export interface RescoreInput {
  readonly subject: RescoreSubject;
  /** The subject's environments, as they are opened now. */
  readonly environments: readonly EvaluatedEnvironment[];
  /** Scores in place of each environment's own rubric; null = each environment's own, as it is now. */
  readonly rubric: EvaluatedEnvironment | null;
  /** Only rollouts without a reward because their judge failed; all others keep their rewards. */
  readonly failedOnly: boolean;
  /** Most questions to judges, and tokens, of one execution of the workflow; absent = no bound. */
  readonly limit?: Partial<JudgeUse>;
  readonly results: EvaluationPlace;
}

/** Result of `openRescore`; later activities refer to it. */
export interface RescoreHandle {
  readonly place: EvaluationPlace;
  /** → {@link StoredRescore} */
  readonly spec: ObjectRef;
  /** Of the subject and of the rubric, for people. */
  readonly name: string;
  readonly rubric: string;
  readonly chunks: number;
  readonly warnings: readonly string[];
}

/** `rescore.json`: written before anything is scored, and never again. */
export interface StoredRescore {
  readonly schemaVersion: 1;
  readonly input: RescoreInput;
  /** Which stored rollouts each chunk has. */
  readonly of:
    | {
        readonly kind: 'run';
        readonly spec: ObjectRef;
        /** Keys of scored objects. */
        readonly chunks: readonly (readonly string[])[];
      }
    | {
        readonly kind: 'evaluation';
        readonly attempt: number;
        readonly spec: ObjectRef;
        /** Number of its chunks; each is a chunk here. */
        readonly chunks: number;
      };
  readonly openedAt: string;
  readonly codeVersion: string;
}

/** Other rewards of one group: of a run, or of the rollouts of one example of an evaluation. */
export interface RescoredGroup {
  /** Lineage of a run; '' in an evaluation. */
  readonly lineage: string;
  readonly environment: string;
  /** The group's ordinal, or the example's position in the evaluation. */
  readonly group: number;
  readonly exampleId: number;
  readonly rollouts: readonly RescoredRollout[];
}

export interface RescoredRollout {
  readonly index: number;
  readonly before: { readonly outcome: Outcome; readonly reward: number | null };
  readonly outcome: Outcome;
  /** Null: without a reward, see `outcome`. */
  readonly reward: number | null;
  readonly metrics: Readonly<Record<string, number>>;
  readonly turnRewards?: readonly number[];
  readonly raised?: Readonly<Record<string, string>>;
  readonly traces?: readonly AgentTrace[];
  readonly flags?: readonly RolloutFlag[];
  readonly rewardBeforeCut?: number;
  readonly error?: string;
}

/** A group in the journal of a chunk, written before the chunk is finished: a judge is not asked again. */
export interface JournaledGroup extends RescoredGroup {
  /** Execution of the workflow that asked, and what its judges cost. */
  readonly request: string;
  readonly use: JudgeUse;
}

/** `chunk_N.json`: a finished chunk, written once. */
export interface StoredRescoredChunk {
  readonly environments: Readonly<
    Record<
      string,
      {
        readonly figures: RescoreFigures;
        readonly tally: EvaluationTally;
        readonly examples: number;
        /** Rows of `results.jsonl`, in order. */
        readonly rows: readonly ObjectRef[];
      }
    >
  >;
  /** → {@link RescoredGroup}, in order. */
  readonly scores: readonly ObjectRef[];
}

/** Result of one chunk's activity: small, since it passes through history. */
export interface RescoredChunk {
  readonly chunk: number;
  readonly rollouts: number;
  readonly changed: number;
  readonly failed: number;
  /** Of this execution of the workflow, earlier attempts at the chunk included. */
  readonly use: JudgeUse;
  /** Not finished: what was allowed is spent. */
  readonly isOver: boolean;
  readonly seconds: number;
}

/** How one environment's rewards changed. */
export interface RescoredEnvironment extends Omit<RescoreFigures, 'pairs' | 'sums' | 'before' | 'after'> {
  readonly environment: string;
  /** Means over rollouts that have a reward. */
  readonly before: number | null;
  readonly after: number | null;
  /**
   * Kendall's τ-b over pairs of rollouts of one example, from −1 to 1: whether both rubrics order them alike. Null if
   * no pair is ordered by both.
   */
  readonly rankAgreement: number | null;
  /** Pearson's correlation of rewards before and after; null if either does not vary. */
  readonly correlation: number | null;
  /** Absolute path of its results, for people. */
  readonly folder: string;
}

export interface RescoreResult {
  readonly id: string;
  readonly place: EvaluationPlace;
  readonly folder: string;
  readonly name: string;
  readonly rubric: string;
  readonly rollouts: number;
  readonly rescored: number;
  readonly changed: number;
  readonly environments: readonly RescoredEnvironment[];
  readonly judge: JudgeUse;
  readonly seconds: number;
}

/** Answer to the query `status` of a workflow `rescore`. */
export interface RescoreStatus {
  readonly name: string;
  readonly rubric: string;
  readonly phase: 'opening' | 'rescoring' | 'closing' | 'finished';
  readonly chunks: { readonly done: number; readonly of: number | null };
  readonly rollouts: { readonly done: number; readonly changed: number; readonly failed: number };
  readonly judge: JudgeUse;
  readonly waitingOn: readonly string[];
  readonly warnings: readonly string[];
}
