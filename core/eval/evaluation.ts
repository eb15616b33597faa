import type { FailureCounts } from '../rl/failures.ts';
import type { ObjectRef, PolicyVersion, RunHandle } from '../rl/run-state.ts';
import type { EnvironmentSpec, JsonValue, PythonEnvironmentSpec, SamplingSpec } from '../../config/run-spec.ts';

/** The words of an evaluation: what answers, on what, where its results go, and what came of it. Plain data, as it goes through history. */

/** A server that answers by messages (`/chat/completions`). Its key is named, and read by the worker that asks. */
export interface EvaluatedServer {
  /** As the server calls it. */
  readonly model: string;
  /** Of its API, as people write it: `https://api.openai.com/v1`. */
  readonly baseUrl: string;
  /** Name of the environment variable with the key; null = it asks for none. */
  readonly apiKeyVar: string | null;
  readonly headers: Readonly<Record<string, string>>;
}

/** What answers. */
export type EvaluatedModel =
  | {
      readonly kind: 'endpoint';
      /** For people and for the folder of the results. */
      readonly model: string;
      /** One, or replicas that share the work. */
      readonly servers: readonly EvaluatedServer[];
      /** Request fields as verifiers sends them: `max_tokens`, `temperature`, `extra_body`, …; null = left out. */
      readonly sampling: Readonly<Record<string, JsonValue>>;
    }
  | {
      /** A committed version of a run, token by token: requests name it, and servers of the run hold it. */
      readonly kind: 'version';
      /** For people and for the folder of the results. */
      readonly model: string;
      readonly run: RunHandle;
      readonly policy: PolicyVersion;
      /** In place of the run's; a temperature of 0 is greedy here. */
      readonly sampling: SamplingSpec;
    };

export interface EvaluatedEnvironment {
  /** Of a built-in environment, the absolute path of a file of the user's, or with `python` the name of a package. */
  readonly id: string;
  readonly name: string;
  readonly args: Readonly<Record<string, JsonValue>>;
  readonly sha256?: string | undefined;
  readonly python?: PythonEnvironmentSpec | undefined;
  /** As in a run file. */
  readonly variables?: EnvironmentSpec['variables'];
  readonly limits?: EnvironmentSpec['limits'];
  /** In place of its examples' own. */
  readonly systemPrompt?: EnvironmentSpec['systemPrompt'];
  readonly agent?: EnvironmentSpec['agent'];
  /** Set on a verifiers environment once it is loaded (`set_kwargs`). */
  readonly extra?: Readonly<Record<string, JsonValue>> | undefined;
  /** Columns of its rollouts' state that go into their rows: of a verifiers environment (v0). */
  readonly stateColumns?: readonly string[] | undefined;
}

/** Where results lie: a folder of a store, whatever kind that is. */
export interface EvaluationPlace {
  /** Absolute URI of the folder that holds `name`. */
  readonly store: string;
  /** Of an evaluation on demand its id; of one inside a run the run's name. */
  readonly name: string;
  /** Below it: '' or `evals/ENV--MODEL/step_50/`. */
  readonly prefix: string;
}

/** One environment, one model: what the workflow `evaluate` does once. */
export interface EvaluationInput {
  readonly environment: EvaluatedEnvironment;
  readonly model: EvaluatedModel;
  /** −1 = all held-out examples. */
  readonly numExamples: number;
  /** Held-out examples that are left out at the start. */
  readonly skipExamples?: number | undefined;
  readonly rolloutsPerExample: number;
  /** Keys the random numbers of a version's sampling. */
  readonly seed: number;
  /** Examples in another order, the same for the same number; null = in the dataset's. */
  readonly shuffleSeed: number | null;
  /** Rollouts at once; −1 = no bound. */
  readonly maxConcurrent: number;
  /** Each rollout is scored by itself, not with its group. */
  readonly independentScoring: boolean;
  /** How often a rollout that its environment spoiled is played again. */
  readonly maxRetries: number;
  /** Seconds without any rollout coming to its end after which what is left is given up as `timeout`. */
  readonly standstillS: number;
  /** In place of the environment's own; it lies where the results go. */
  readonly systemPrompt?: ObjectRef | undefined;
  readonly results: EvaluationPlace;
  /** Goes into every row, below `ratchet`. */
  readonly about?: Readonly<Record<string, JsonValue>> | undefined;
  /** US dollars for a million tokens, where they are known. */
  readonly prices?: { readonly input: number; readonly output: number } | undefined;
  /** Told of the end by a signal with {@link EvaluationNotice}. */
  readonly notify?: { readonly workflowId: string; readonly signal: string } | undefined;
}

/** What `openEvaluation` returns: all that is done later refers to it. */
export interface EvaluationHandle {
  readonly place: EvaluationPlace;
  /** → {@link StoredEvaluation} */
  readonly spec: ObjectRef;
  readonly environment: string;
  readonly model: string;
  /** Really there, of those that were asked for. */
  readonly examples: number;
  readonly rolloutsPerExample: number;
  /** How often it has been opened: what failed in an attempt is played again in the next. */
  readonly attempt: number;
  /** Examples of one activity; the same in every attempt. */
  readonly chunkExamples: number;
  readonly chunks: number;
  /** Rollouts of all chunks at once. */
  readonly inFlight: number;
  /** And of one chunk. */
  readonly atOnce: number;
  readonly warnings: readonly string[];
}

/** `evaluation.json`, by content: what an evaluation is, with its examples counted. */
export interface StoredEvaluation {
  readonly schemaVersion: 1;
  readonly input: EvaluationInput;
  readonly examples: number;
  readonly chunkExamples: number;
  readonly attempt: number;
  /** Who opened this attempt: asked once more it is the same one. */
  readonly request: string;
  readonly openedAt: string;
  readonly codeVersion: string;
}

/**
 * Sums over scored rollouts, of a chunk or of all: they add up, whatever order chunks end in. Rollouts that failed through infrastructure
 * are counted and add nothing else.
 */
export interface EvaluationTally {
  readonly rollouts: number;
  readonly failed: number;
  readonly rewards: number;
  /** Sum and count of each reward function. */
  readonly metrics: Readonly<Record<string, readonly [sum: number, count: number]>>;
  /** Sums of tokens over rollouts that say them, and how many do. */
  readonly usage: Readonly<Record<string, number>>;
  readonly usageCount: number;
  readonly truncated: number;
  /** With a reward, and an error of the policy's own. */
  readonly policyFailures: number;
  /** Examples whose rollouts all have a reward, by how many of them were right. */
  readonly examplesByRight: readonly number[];
  readonly causes: FailureCounts;
}

export interface ChunkResult {
  readonly chunk: number;
  readonly tally: EvaluationTally;
  /** Rollouts that lay in the store already. */
  readonly adopted: number;
  readonly seconds: number;
}

/** What came of it: small, it goes through history and signals. Figures that nothing stands behind are null or left out. */
export interface EvaluationResult {
  readonly environment: string;
  readonly model: string;
  readonly id: string;
  readonly place: EvaluationPlace;
  /** Absolute, for people. */
  readonly folder: string;
  readonly examples: number;
  readonly rollouts: number;
  readonly rolloutsPerExample: number;
  /** Without a reward: infrastructure. Opened once more, the evaluation plays them again. */
  readonly failed: number;
  /** Mean over rollouts that have one. */
  readonly avgReward: number | null;
  readonly avgMetrics: Readonly<Record<string, number>>;
  readonly truncatedShare: number | null;
  readonly passAtK: Readonly<Record<string, number>>;
  readonly passAllK: Readonly<Record<string, number>>;
  /** One line for each cause of failed rollouts. */
  readonly failures: readonly string[];
  /** Mean tokens of a rollout; absent where servers do not say. */
  readonly usage: Readonly<Record<string, number>> | null;
  /** US dollars; null where prices are not known. */
  readonly cost: number | null;
  readonly attempt: number;
  /** Rollouts of this attempt, and those that it found. */
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

/** What the signal of `notify` carries: the result, or why there is none. */
export type EvaluationNotice =
  | { readonly workflowId: string; readonly result: EvaluationResult }
  | { readonly workflowId: string; readonly failed: string };

/** A file of evaluations, as `[[eval]]` has them; relative paths start in the project's folder. */
export interface EvaluationFileInput {
  readonly config: string;
  /** Settings in the file's words (`num_examples`), which hold for each of its evaluations over what it says. */
  readonly over?: Readonly<Record<string, JsonValue>>;
  /**
   * Which evaluations that lie there already it goes on with: those that were interrupted (where not said), those with anything left to do,
   * or none.
   */
  readonly goOn?: 'interrupted' | 'unfinished' | 'never';
}

/** Several evaluations that are read and placed already. */
export interface EvaluationsInput {
  readonly inputs: readonly EvaluationInput[];
  /** What they are, for people. */
  readonly title: string;
  /** What tells their workflows apart, in the order of `inputs`; missing = environment and place. */
  readonly names?: readonly string[] | undefined;
  /** How many are at work side by side; some when missing. */
  readonly atOnce?: number | undefined;
}

/** What people ask of a workflow `evaluate` (query `status`). */
export interface EvaluationStatus {
  readonly environment: string;
  readonly model: string;
  readonly phase: 'opening' | 'evaluating' | 'closing' | 'finished';
  readonly examples: number | null;
  readonly rollouts: { readonly done: number; readonly of: number | null; readonly failed: number };
  /** Of finished chunks. */
  readonly avgReward: number | null;
  readonly passAtK: Readonly<Record<string, number>>;
  readonly waitingOn: readonly string[];
  readonly folder: string;
  readonly warnings: readonly string[];
  /** Of a file with several evaluations: their workflows. */
  readonly parts: readonly string[];
}
