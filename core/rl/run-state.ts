import type { LossSettings, OptimizerSettings } from '../settings/learning.ts';
import type { Baselines } from './rollout/agents.ts';
import type { LeasedChunk } from './sampling/chunks.ts';
import type { CurriculumState } from './sampling/curriculum.ts';
import type { Drift } from './sampling/drift.ts';
import type { StepOutcomes } from './ledger.ts';
import type { PromptsOfBatch } from './rollout/prompts-of-batch.ts';
import type { GroupLease } from './rollout/rollout.ts';

/** Points to an immutable object of the run's store. Large values travel like this; history keeps decisions. */
export interface ObjectRef {
  /** Path in the run's folder. */
  readonly key: string;
  readonly sha256: string;
  readonly bytes: number;
  /** Number of rows, if the object has rows. */
  readonly count?: number;
}

/** One version of the policy: v(step), identified by its weights. */
export interface PolicyVersion {
  readonly step: number;
  /** Number of replays of this step that gave other weights, which then replaced it (`v12.r1`); 0 when absent. */
  readonly replay?: number;
  /** sha256 of the weights, hex. */
  readonly digest: string;
  /** Folder of Hugging Face or PEFT files, relative to the run's folder, with a trailing slash. */
  readonly weights: string;
  /** Its only safetensors file, or the index of several: stored last, so a version that has it is whole. */
  readonly file: ObjectRef;
  /**
   * The list of all its files with their sha256 (`SHA256SUMS`), for an adapter also those of its base: the identity of
   * the whole version.
   */
  readonly sums: ObjectRef;
}

/**
 * State of an optimizer: bytes, or the files of a folder if it may exceed the memory of a process. `isVerified`: all of them were just
 * compared with the digests of their list.
 */
export type OptimizerState = Uint8Array | { readonly folder: string; readonly isVerified?: boolean };

/** A version as servers hold it: its name there, its digest, and where its files lie on this machine. */
export interface ServedPolicy {
  readonly name: string;
  readonly version: PolicyVersion;
  readonly folder: string;
  /** Time that strftime_now gives its chat template, as `minuteOf` writes it; missing = the clock's. */
  readonly templateTime?: string;
  /** Roots of servers that hold other weights under its name, as its broadcast found: nothing of it is asked there. */
  readonly avoid?: readonly string[];
}

/** The commit a lineage was begun from. */
export interface LineageOrigin {
  /** A fork names another run. */
  readonly run: string;
  readonly lineage: string;
  readonly step: number;
  /** Digest of the commit's bytes. */
  readonly sha256: string;
}

/** Reference to a run for activities. The spec is an object of its own, so that history does not repeat it. */
export interface RunHandle {
  readonly name: string;
  /** Absolute URI of the folder that holds the run folders. */
  readonly store: string;
  readonly lineage: string;
  readonly spec: ObjectRef;
  /** How often the run was opened; names the folder of its logs. */
  readonly attempt: number;
  /**
   * Start of the run in the form of `minuteOf`: the date for chat templates that print it, the same on every day of the
   * run. Missing in older runs: their templates use the day of rendering.
   */
  readonly begunAt?: string;
}

/** A worker's report on whether it sees the run's store. */
export interface StoreMissed {
  /** The worker and its machine, such as `rollout worker 4711 on gpu-b`. */
  readonly worker: string;
  /** Why the worker does not see the store; null = it sees it again. */
  readonly why: string | null;
  /** It sees the store, but cannot read objects of a newer version. */
  readonly isOlder?: true;
}

/** One sampling round of a step: the groups first … last, leased together. */
export interface SamplingRound {
  readonly step: number;
  readonly first: number;
  readonly last: number;
  readonly policyStep: number;
  /** → {@link LeasedGroups} */
  readonly leases: ObjectRef;
}

/**
 * A sampling round in flight at a commit, in the commit's form: {@link SamplingRound} without the contents of its
 * leases.
 */
export interface OpenRound {
  readonly step: number;
  readonly first: number;
  readonly last: number;
  /** sha256 of its leases. */
  readonly leases: string;
  /** Ordinals of those of its groups that have not ended, as ranges; absent: none has. */
  readonly groups?: string;
  /**
   * Unfinished chunks, by index among the round's leases. Only commits of the afternoon of 25 November 2026 have this, instead of `groups`.
   */
  readonly chunks?: readonly number[];
}

/** Kept groups of one chunk, waiting for a batch. */
export interface KeptGroups {
  readonly scored: ObjectRef;
  readonly policyStep: number;
  /** Ordinals, as ranges. */
  readonly ordinals: string;
  /** The version of the oldest token of each of these groups, in their order; absent if all equal `policyStep`. */
  readonly oldest?: readonly number[];
  /**
   * Sizes of these groups, in their order, in the unit of a batch: tokens of rows (`token_batch_size`), or rollouts if
   * groups differ in their number.
   */
  readonly sizes?: readonly number[];
}

/** Settings changed while the run was running (`core/rl/live-settings.ts`), in place of the file's. */
export interface Overrides {
  readonly learningRate?: number;
  readonly maxSteps?: number;
  readonly stopAfter?: number;
  readonly maxGradNorm?: number;
  readonly maxMismatchKl?: number;
  readonly evalInterval?: number;
  readonly checkpointInterval?: number;
  readonly budgetTokens?: number;
  readonly budgetMoney?: number;
  readonly budgetSandboxS?: number;
  readonly budgetToolCalls?: number;
  readonly budgetWallS?: number;
  readonly queuePriority?: number;
}

/**
 * Requests to a running run, by people or by itself, that are in no commit yet. They are in the run's memo, which can
 * be read even if no worker can answer for the run.
 */
export interface AskedOfRun {
  readonly pausedBecause: string | null;
  readonly isPausedByPerson: boolean;
  readonly overrides: Overrides;
  /** `request` identifies the request, so that it is not executed twice. */
  readonly rewind: RewindRequest | null;
}

export interface RewindRequest {
  readonly step: number;
  /** `WORKFLOW_ID/EXECUTION_ID` of the receiver. */
  readonly request: string;
}

export const nothingAsked: AskedOfRun = { pausedBecause: null, isPausedByPerson: false, overrides: {}, rewind: null };

/** The next of a run's rows, counted over all passes; if a row gives several samples, the next of these. */
export interface RowPlace {
  readonly row: number;
  readonly sample: number;
}

/** A system prompt that replaces an environment's own. */
export interface PromptRef {
  /** Its text, named by its content; its sha256 is the digest that rollouts carry. */
  readonly ref: ObjectRef;
  /** The step of the version from which the branch that found it began. */
  readonly foundAt: number;
}

/** Prompts by environment; a missing one has its own. */
export type Prompts = Readonly<Record<string, PromptRef>>;

/** A prompt search for one environment from one version: due, or in progress. */
export interface PromptBranch {
  readonly environment: string;
  readonly step: number;
}

/**
 * Everything without which N + N steps would differ from 2N. It is a snapshot at the moment step n's groups were
 * collected, never later, so that groups prefetched for step n+1 do not leak into commit n: a resumed run leases the
 * same groups again and adopts their stored results.
 */
export interface RunState {
  readonly schemaVersion: 1;
  readonly lineage: string;
  /** The last committed step. */
  readonly step: number;
  readonly policy: PolicyVersion;
  /** Reference of the KL term and of `train/kl_divergence`. */
  readonly reference: PolicyVersion;
  readonly klBeta: number;
  readonly curriculum: CurriculumState;
  /** Kept groups that no step has trained yet. */
  readonly surplus: readonly KeptGroups[];
  /** Rounds in flight at this commit; absent if there were none. */
  readonly open?: readonly OpenRound[];
  /** Running means of rewards by role, after the step's batch; absent if the run's advantage keeps none. */
  readonly baselines?: Baselines;
  /** How many more groups may become stale, by `staleBudgetAfter`; absent before the first step, and at level 0. */
  readonly staleBudget?: number;
  /**
   * Distance of samples from the trained policy; absent before the first step, and if sampling is at most one step
   * ahead.
   */
  readonly drift?: Drift;
  readonly overrides: Overrides;
  /** Steps whose evaluation was due and not recorded at the commit. */
  readonly pendingEvals: readonly number[];
  /** Position in the rows of `[data]`. Absent before the first step, and in a run on rollouts. */
  readonly rows?: RowPlace;
  /** Prompts of the groups leased from now on. Absent while every environment has its own. */
  readonly prompts?: Prompts;
  /** Winners that wait for a person's approval; absent if there are none. */
  readonly offeredPrompts?: Prompts;
  /** Branches that were due or in progress at the commit; absent if there were none. */
  readonly pendingBranches?: readonly PromptBranch[];
}

/** Contents of a sampling round's lease, written before generation starts. */
export interface LeasedGroups {
  readonly policy: PolicyVersion;
  readonly leases: readonly GroupLease[];
  /** Division of the groups among workers. */
  readonly chunks: readonly LeasedChunk[];
  /** Prompts of the environments, including those that a group names by digest. Absent if each has its own. */
  readonly prompts?: Prompts;
  /** State after these groups. */
  readonly curriculum: CurriculumState;
}

/** A teacher's scores of a packed batch, fixed before it is trained on. */
export interface TaughtBatch {
  /** → {@link TaughtRows} */
  readonly logprobs: ObjectRef;
  /** The teacher's weights or server. */
  readonly teacher: string;
  /** Estimate of KL(policy ‖ teacher), nats per token. */
  readonly kl: number;
  readonly seconds: number;
}

/**
 * Rows of token ids in parts, each an object named by its content: the stored form of a batch, in the order of its
 * plan.
 */
export interface StoredRows {
  readonly parts: readonly ObjectRef[];
  /** Tokens of each row, and those that count in the loss. */
  readonly tokens: readonly number[];
  readonly counted: readonly number[];
  /** Rows without the policy's log probabilities; absent if there are none. */
  readonly untold?: readonly number[];
  /** Rows that are trained on a teacher alone, in a mixed batch; absent if there are none. */
  readonly distilled?: readonly number[];
  /** `RowFacts.observed` of each row; absent if no row has any. */
  readonly observed?: readonly number[];
  /** `RowFacts.shared` of each row; absent if no row shares any, and in older batches. */
  readonly shared?: readonly number[];
  /**
   * The rollout of each row, and the number of rollouts; absent if each row is a rollout of its own, and there are no
   * others.
   */
  readonly rollouts?: { readonly indices: readonly number[]; readonly of: number };
}

export interface PackedBatch {
  readonly rows: StoredRows;
  readonly metrics: Readonly<Record<string, number>>;
  /** See {@link StepPlan}. */
  readonly prompts?: PromptsOfBatch;
}

/** A teacher's log probabilities of a batch's rows, in parts of equally many. */
export interface TaughtRows {
  readonly parts: readonly ObjectRef[];
  readonly rowsOfPart: number;
}

/** One immutable object with everything that decides a train step. Training it again gives the same result. */
export interface StepPlan {
  readonly lineage: string;
  readonly step: number;
  readonly attempt: number;
  readonly from: PolicyVersion;
  /** → {@link PackedBatch}; `count` = its rows. */
  readonly packed: ObjectRef;
  /** Prompts of its groups. Absent if all had their environment's own. */
  readonly prompts?: PromptsOfBatch;
  readonly learningRate: number;
  readonly temperature: number;
  readonly klBeta: number;
  readonly reference: PolicyVersion;
  readonly loss: LossSettings;
  /** Loss of rows that are trained on a teacher alone; absent if they use `loss`. */
  readonly distillation?: LossSettings;
  readonly optimizer: OptimizerSettings;
  /** Optimizer steps on this batch. */
  readonly numIterations: number;
  /** Parts of it that are a step each, in every pass; 1 when absent. */
  readonly numMiniBatches?: number;
  /** Rows computed at once; null = as many as suit the engine. It decides the order of sums, so bits. */
  readonly microBatchSize: number | null;
  /** `microBatchSize` was halved after this step ran out of memory; it is not halved again. */
  readonly isHalved?: boolean;
  /** Present in runs with a scoring teacher. */
  readonly taught?: Pick<TaughtBatch, 'logprobs' | 'teacher'>;
  /** Keys the dropout masks of adapters; 0 when absent. */
  readonly dropoutSeed?: number;
  /** Whether the optimizer's state is stored with the new version, to be sealed as a checkpoint. */
  readonly snapshot: boolean;
}

/** `lineages/L/steps/step_N.json`: the fence. A step has happened when this object is in the store, and only then. */
export interface StepCommit {
  readonly schemaVersion: 1;
  readonly codeVersion: string;
  readonly run: string;
  readonly lineage: string;
  readonly step: number;
  /** sha256 of the parent commit's bytes; null for a lineage's first. */
  readonly parent: string | null;
  /** Origin of the lineage, on its first commit. Absent on step 0 of a run that began with a model. */
  readonly origin?: LineageOrigin;
  readonly spec: ObjectRef;
  readonly plan: ObjectRef | null;
  readonly policy: PolicyVersion;
  /** Start of the step, if it is not the version of the parent commit but a differing replay of it. */
  readonly from?: PolicyVersion;
  /**
   * The trainer's fingerprint: beside equal inputs, equal ones promise equal bits. Absent if the trainer reports none.
   */
  readonly engine?: string;
  /** The optimizer's state at this version, if the plan requested it. */
  readonly optimizer: ObjectRef | null;
  readonly outcomes: StepOutcomes;
  readonly metrics: Readonly<Record<string, number>>;
  readonly state: RunState;
  readonly committedAt: string;
}
