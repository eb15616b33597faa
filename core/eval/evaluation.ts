import type { FailureCounts } from '../rl/failures.ts';
import type { ObjectRef, PolicyVersion, RunHandle } from '../rl/run-state.ts';
import type { JsonValue } from '../json-value.ts';
import type { EnvironmentEntry } from '../settings/environments.ts';
import type { BudgetLimits } from '../settings/budgets.ts';
import type { SamplingSettings } from '../settings/rollouts.ts';

/** The nouns of an evaluation: the model, the examples, the results and their place. Plain data, as in history. */

/** A server with a chat API (`/chat/completions`). Its key is named; the worker that calls the server reads it. */
export interface EvaluatedServer {
  /** The server's name for it. */
  readonly model: string;
  /** Base URL of its API: `https://api.openai.com/v1`. */
  readonly baseUrl: string;
  /** Name of the environment variable with the key; null = no key is needed. */
  readonly apiKeyVar: string | null;
  readonly headers: Readonly<Record<string, string>>;
}

/** Source of the answers. */
export type EvaluatedModel =
  | {
      readonly kind: 'endpoint';
      /** Name for people and for the folder of the results. */
      readonly model: string;
      /** One, or replicas that share the work. */
      readonly servers: readonly EvaluatedServer[];
      /** Request fields as verifiers sends them: `max_tokens`, `temperature`, `extra_body`, …; null = left out. */
      readonly sampling: Readonly<Record<string, JsonValue>>;
    }
  | {
      /** A committed version of a run, sampled token by token: requests name it, and servers of the run hold it. */
      readonly kind: 'version';
      /** Name for people and for the folder of the results. */
      readonly model: string;
      readonly run: RunHandle;
      readonly policy: PolicyVersion;
      /** In place of the run's; a temperature of 0 is greedy here. */
      readonly sampling: SamplingSettings;
    };

export interface EvaluatedEnvironment extends Omit<EnvironmentEntry, 'episode'> {
  readonly name: string;
}

/** Location of the results: a folder of a store of any kind. */
export interface EvaluationPlace {
  /** Absolute URI of the folder that holds `name`. */
  readonly store: string;
  /** The id of an evaluation on demand; inside a run, the run's name. */
  readonly name: string;
  /** Path below it: '' or `evals/ENV--MODEL/step_50/`. */
  readonly prefix: string;
}

/** Input of one workflow `evaluate`: one environment, one model. */
export interface EvaluationInput {
  readonly environment: EvaluatedEnvironment;
  readonly model: EvaluatedModel;
  /** −1 = all held-out examples. */
  readonly numExamples: number;
  /** Number of held-out examples to skip at the start. */
  readonly skipExamples?: number | undefined;
  readonly rolloutsPerExample: number;
  /** Keys the random numbers of a version's sampling. */
  readonly seed: number;
  /** Seed of the examples' order; null = in the dataset's order. */
  readonly shuffleSeed: number | null;
  /** Rollouts at once; −1 = no bound. */
  readonly maxConcurrent: number;
  /** Each rollout is scored by itself, not with its group. */
  readonly independentScoring: boolean;
  /** Repetitions of a rollout that its environment failed. */
  readonly maxRetries: number;
  /** Seconds without a finished rollout after which the rest is given up as `timeout`. */
  readonly standstillS: number;
  /** Replaces the environment's own; stored with the results. */
  readonly systemPrompt?: ObjectRef | undefined;
  readonly results: EvaluationPlace;
  /** Added to every row, below `ratchet`. */
  readonly about?: Readonly<Record<string, JsonValue>> | undefined;
  /** US dollars per million tokens, if known. */
  readonly prices?: { readonly input: number; readonly output: number } | undefined;
  /** What it may use in all of its attempts; the newest attempt's counts. Missing = not limited. */
  readonly budget?: BudgetLimits | undefined;
  /** Receiver of an {@link EvaluationNotice} at the end. */
  readonly notify?: { readonly workflowId: string; readonly signal: string } | undefined;
}

/** Result of `openEvaluation`; later activities refer to it. */
export interface EvaluationHandle {
  readonly place: EvaluationPlace;
  /** → {@link StoredEvaluation} */
  readonly spec: ObjectRef;
  readonly environment: string;
  readonly model: string;
  /** Available examples among those requested. */
  readonly examples: number;
  readonly rolloutsPerExample: number;
  /** Number of attempts. Rollouts that failed in one attempt are repeated in the next. */
  readonly attempt: number;
  /** Examples of one activity; equal in every attempt. */
  readonly chunkExamples: number;
  readonly chunks: number;
  /** Bound for all chunks together. */
  readonly inFlight: number;
  /** Bound for one chunk. */
  readonly atOnce: number;
  readonly warnings: readonly string[];
}

/** `evaluation.json`, named by its content: an evaluation with its number of examples. */
export interface StoredEvaluation {
  readonly schemaVersion: 1;
  readonly input: EvaluationInput;
  readonly examples: number;
  readonly chunkExamples: number;
  readonly attempt: number;
  /** The opener of this attempt: the same request opens the same attempt. */
  readonly request: string;
  readonly openedAt: string;
  readonly codeVersion: string;
}

/**
 * Sums over scored rollouts, of a chunk or of all: they add up in any order of chunks. Rollouts that failed through
 * infrastructure are only counted.
 */
export interface EvaluationTally {
  readonly rollouts: number;
  readonly failed: number;
  readonly rewards: number;
  /** Sum and count of each reward function. */
  readonly metrics: Readonly<Record<string, readonly [sum: number, count: number]>>;
  /** Sums of tokens over rollouts that report them, and the number of these. */
  readonly usage: Readonly<Record<string, number>>;
  readonly usageCount: number;
  readonly truncated: number;
  /** Rollouts with a reward and an error of the policy's own. */
  readonly policyFailures: number;
  /** Examples whose rollouts are all rewarded, indexed by the number of right ones. */
  readonly examplesByRight: readonly number[];
  readonly causes: FailureCounts;
}

export interface ChunkResult {
  readonly chunk: number;
  readonly tally: EvaluationTally;
  /** Rollouts that were already in the store. */
  readonly adopted: number;
  readonly seconds: number;
}

/**
 * Result of an evaluation: small, since it passes through history and signals. Figures without data are null or left
 * out.
 */
export interface EvaluationResult {
  readonly environment: string;
  readonly model: string;
  readonly id: string;
  readonly place: EvaluationPlace;
  /** Absolute path, for people. */
  readonly folder: string;
  readonly examples: number;
  readonly rollouts: number;
  readonly rolloutsPerExample: number;
  /** Rollouts without a reward, due to infrastructure. The next attempt repeats them. */
  readonly failed: number;
  /** Mean over rewarded rollouts. */
  readonly avgReward: number | null;
  readonly avgMetrics: Readonly<Record<string, number>>;
  readonly truncatedShare: number | null;
  readonly passAtK: Readonly<Record<string, number>>;
  readonly passAllK: Readonly<Record<string, number>>;
  /** One line for each cause of failed rollouts. */
  readonly failures: readonly string[];
  /** Mean tokens of a rollout; absent if servers do not report them. */
  readonly usage: Readonly<Record<string, number>> | null;
  /** US dollars; null without prices. */
  readonly cost: number | null;
  readonly attempt: number;
  /** Rollouts of this attempt, and adopted ones. */
  readonly sampled: number;
  readonly adopted: number;
  readonly seconds: number;
  /** The first rollout that has a reward. */
  readonly says: EvaluationSaying | null;
}

export interface EvaluationSaying {
  readonly exampleId: number;
  readonly prompt: string;
  readonly completion: string;
  readonly answer: string;
  readonly reward: number | null;
}

/** Payload of the `notify` signal: the result, or the reason why there is none. */
export type EvaluationNotice =
  | { readonly workflowId: string; readonly result: EvaluationResult }
  | { readonly workflowId: string; readonly failed: string };

/** A file of evaluations, as `[[eval]]` has them; relative paths start in the project's folder. */
export interface EvaluationFileInput {
  readonly config: string;
  /** Settings in the file's words (`num_examples`), which override those of each evaluation. */
  readonly over?: Readonly<Record<string, JsonValue>>;
  /** Existing evaluations to continue: interrupted ones (the default), those with work left, or none. */
  readonly goOn?: 'interrupted' | 'unfinished' | 'never';
}

/** Several parsed evaluations with their places. */
export interface EvaluationsInput {
  readonly inputs: readonly EvaluationInput[];
  /** Title for people. */
  readonly title: string;
  /** Distinguishes their workflows, in the order of `inputs`; missing = environment and place. */
  readonly names?: readonly string[] | undefined;
  /** Bound on concurrent evaluations; a default when missing. */
  readonly atOnce?: number | undefined;
}

/** Answer to the query `status` of a workflow `evaluate`. */
export interface EvaluationStatus {
  readonly environment: string;
  readonly model: string;
  readonly phase: 'opening' | 'evaluating' | 'closing' | 'finished';
  readonly examples: number | null;
  readonly rollouts: { readonly done: number; readonly of: number | null; readonly failed: number };
  /** Mean over finished chunks. */
  readonly avgReward: number | null;
  readonly passAtK: Readonly<Record<string, number>>;
  readonly waitingOn: readonly string[];
  readonly folder: string;
  readonly warnings: readonly string[];
  /** Workflows of a file with several evaluations. */
  readonly parts: readonly string[];
}
