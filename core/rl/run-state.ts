import type { LossSettings, RunSpec } from '../../config/run-spec.ts';
import type { Baselines } from './agents.ts';
import type { LeasedChunk } from './chunks.ts';
import type { CurriculumState } from './curriculum.ts';
import type { Drift } from './drift.ts';
import type { StepOutcomes } from './ledger.ts';
import type { PromptsOfBatch } from './prompts-of-batch.ts';
import type { GroupLease } from './rollout.ts';

/** Points to an immutable object of the run's store. Large things travel like this; history keeps decisions. */
export interface ObjectRef {
  /** Relative to the run's folder. */
  readonly key: string;
  readonly sha256: string;
  readonly bytes: number;
  /** Rows, where the object has rows. */
  readonly count?: number;
}

/** One version of the policy: v(step), identified by what its weights are. */
export interface PolicyVersion {
  readonly step: number;
  /** How many times training up to this step again gave other weights, which then took its place (`v12.r1`); 0 when absent. */
  readonly replay?: number;
  /** sha256 of the weights, hex. */
  readonly digest: string;
  /** Folder of Hugging Face or PEFT files, relative to the run's folder, with a trailing slash. */
  readonly weights: string;
  /** The one safetensors file in it. */
  readonly file: ObjectRef;
  /** The list of all files in it with their sha256 (`SHA256SUMS`), of an adapter with those of its base: what the version is, whole. */
  readonly sums: ObjectRef;
}

/** The commit a lineage was begun from. */
export interface LineageOrigin {
  /** Another run for a fork. */
  readonly run: string;
  readonly lineage: string;
  readonly step: number;
  /** Of the commit's bytes. */
  readonly sha256: string;
}

/** What every activity needs to find its run. The spec is an object of its own, so that history does not repeat it. */
export interface RunHandle {
  readonly name: string;
  /** Absolute URI of the folder that holds the run folders. */
  readonly store: string;
  readonly lineage: string;
  readonly spec: ObjectRef;
  /** How often the run has been opened: names the folder of its logs. */
  readonly attempt: number;
  /**
   * When the run was begun, as `minuteOf` writes it: what a chat template that asks for the day is told, on every day of the run.
   * Missing of a run that is older than this: its templates are told the day they are rendered on.
   */
  readonly begunAt?: string;
}

/** A worker's report on whether it sees the run's store. */
export interface StoreMissed {
  /** The worker and its machine, such as `rollout worker 4711 on gpu-b`. */
  readonly worker: string;
  /** Why the worker does not see the store; null = it sees it again. */
  readonly why: string | null;
  /** It sees the store, and a newer version wrote what it cannot read. */
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

/** A sampling round in play at a commit, as a commit names it: {@link SamplingRound} without what its leases say themselves. */
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
  /** The version of the oldest token of each of these groups, in their order; absent where all have that of `policyStep`. */
  readonly oldest?: readonly number[];
  /** Of each of these groups, in their order, what a batch is made up of: tokens of its rows (`token_batch_size`), or rollouts where groups differ in them. */
  readonly sizes?: readonly number[];
}

/** What was set while the run was running (`core/rl/live-settings.ts`), in place of the file's. */
export interface Overrides {
  readonly learningRate?: number;
  readonly maxSteps?: number;
  readonly stopAfter?: number;
  readonly maxGradNorm?: number;
  readonly maxMismatchKl?: number;
  readonly evalInterval?: number;
  readonly checkpointInterval?: number;
}

/**
 * What was asked of a running run, by people or by itself, and is in no commit yet. The run keeps it in its memo, where
 * it can be read when no code is there that can answer for the run.
 */
export interface AskedOfRun {
  readonly pausedBecause: string | null;
  readonly isPausedByPerson: boolean;
  readonly overrides: Overrides;
  /** `request` tells one wish from another: the same one again is not done twice. */
  readonly rewind: RewindRequest | null;
}

export interface RewindRequest {
  /** A committed step. */
  readonly step: number;
  /** `WORKFLOW_ID/EXECUTION_ID` of who was asked. */
  readonly request: string;
}

export const nothingAsked: AskedOfRun = { pausedBecause: null, isPausedByPerson: false, overrides: {}, rewind: null };

/** The next of a run's rows, counted on over all passes; of a row that gives several samples, the next of these. */
export interface RowPlace {
  readonly row: number;
  readonly sample: number;
}

/** A system prompt in place of an environment's own. */
export interface PromptRef {
  /** Its text, named by its content; its sha256 is the digest that rollouts carry. */
  readonly ref: ObjectRef;
  /** The step whose version the branch began from that found it. */
  readonly foundAt: number;
}

/** By name of the environment; one that is missing has its own. */
export type Prompts = Readonly<Record<string, PromptRef>>;

/** A search for a better prompt of one environment from one version: due, or under way. */
export interface PromptBranch {
  readonly environment: string;
  readonly step: number;
}

/**
 * Everything whose absence would make N + N steps differ from 2N. It is snapshotted at the moment step n's groups were
 * collected, never later, so that what is prefetched for step n+1 does not leak into commit n: a resumed run leases the
 * same groups again and adopts what it finds stored for them.
 */
export interface RunState {
  readonly schemaVersion: 1;
  readonly lineage: string;
  /** The last committed step. */
  readonly step: number;
  readonly policy: PolicyVersion;
  /** Of the KL term and of `train/kl_divergence`. */
  readonly reference: PolicyVersion;
  readonly klBeta: number;
  readonly curriculum: CurriculumState;
  /** Kept groups that no step has trained yet. */
  readonly surplus: readonly KeptGroups[];
  /** Rounds of which something was in play by then; absent where there were none. */
  readonly open?: readonly OpenRound[];
  /** Running means of rewards by role, as the step's batch left them; absent where the run's advantage keeps none. */
  readonly baselines?: Baselines;
  /** How far samples are from what is trained; absent before the first step, and where sampling is a step ahead at most. */
  readonly drift?: Drift;
  readonly overrides: Overrides;
  /** Steps whose evaluation was due and had not been recorded at the commit. */
  readonly pendingEvals: readonly number[];
  /** Where the rows of `[data]` stand. Absent before the first step, and in a run that is trained on rollouts. */
  readonly rows?: RowPlace;
  /** What groups are leased with from here on. Absent while every environment has its own. */
  readonly prompts?: Prompts;
  /** Winners that wait for somebody's yes; absent where there are none. */
  readonly offeredPrompts?: Prompts;
  /** Branches that were due or under way at the commit; absent where there were none. */
  readonly pendingBranches?: readonly PromptBranch[];
}

/** What a sampling round's lease writes before anything is generated for it. */
export interface LeasedGroups {
  readonly policy: PolicyVersion;
  readonly leases: readonly GroupLease[];
  /** How they are divided among workers. */
  readonly chunks: readonly LeasedChunk[];
  /** What their environments are played with; a group's own digest is among them. Absent where each has its own prompt. */
  readonly prompts?: Prompts;
  /** What comes after these groups. */
  readonly curriculum: CurriculumState;
}

/** What a teacher said of a packed batch, fixed before it is trained. */
export interface TaughtBatch {
  /** → {@link TaughtRows} */
  readonly logprobs: ObjectRef;
  /** Which weights or which server. */
  readonly teacher: string;
  /** Estimate of KL(policy ‖ teacher), nats per token. */
  readonly kl: number;
  readonly seconds: number;
}

/** Rows of token ids in parts, each an object by its content: what a batch is stored as, in the order of its plan. */
export interface StoredRows {
  readonly parts: readonly ObjectRef[];
  /** Of each row; and how many of them count in the loss. */
  readonly tokens: readonly number[];
  readonly counted: readonly number[];
  /** Rows without the policy's log probabilities; absent where there are none. */
  readonly untold?: readonly number[];
  /** Rows that are learned from a teacher alone, in a batch of others; absent where there are none. */
  readonly distilled?: readonly number[];
  /** As `RowFacts.observed` of each row; absent where no row has any. */
  readonly observed?: readonly number[];
  /** As `RowFacts.shared` of each row; absent where no row shares any, or the batch was packed before this was told. */
  readonly shared?: readonly number[];
  /** Which rollout each row is of, and how many there are; absent where each is a rollout of its own, and there are no others. */
  readonly rollouts?: { readonly indices: readonly number[]; readonly of: number };
}

/** What a step's rollouts were packed into. */
export interface PackedBatch {
  readonly rows: StoredRows;
  readonly metrics: Readonly<Record<string, number>>;
  /** As in {@link StepPlan}. */
  readonly prompts?: PromptsOfBatch;
}

/** A teacher's log probabilities of a batch's rows, so many of them in each part. */
export interface TaughtRows {
  readonly parts: readonly ObjectRef[];
  readonly rowsOfPart: number;
}

/** One immutable object: all that decides what a train step does. Training it again does the same again. */
export interface StepPlan {
  readonly lineage: string;
  readonly step: number;
  readonly attempt: number;
  readonly from: PolicyVersion;
  /** → {@link PackedBatch}; `count` = its rows. */
  readonly packed: ObjectRef;
  /** What its groups were played with. Absent where all had their environment's own prompt. */
  readonly prompts?: PromptsOfBatch;
  readonly learningRate: number;
  readonly temperature: number;
  readonly klBeta: number;
  readonly reference: PolicyVersion;
  readonly loss: LossSettings;
  /** Of rows that are learned from a teacher alone; absent where `loss` is that of all. */
  readonly distillation?: LossSettings;
  readonly optimizer: RunSpec['optimizer'];
  /** Optimizer steps on this batch. */
  readonly numIterations: number;
  /** Parts of it that are a step each, in every pass; 1 when absent. */
  readonly numMiniBatches?: number;
  /** Rows computed at once; null = as many as suit the engine. It decides the order of sums, so bits. */
  readonly microBatchSize: number | null;
  /** `microBatchSize` is half of what it was when this step ran out of memory; not halved again. */
  readonly isHalved?: boolean;
  /** Of a run with a teacher that scores. */
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
  /** Where this lineage took over, on its first commit. Step 0 of a run that began with a model has none. */
  readonly origin?: LineageOrigin;
  /** The settings that were in force. */
  readonly spec: ObjectRef;
  readonly plan: ObjectRef | null;
  readonly policy: PolicyVersion;
  /** What it was trained from, where that is not the version of the parent commit but a replay of it that differs. */
  readonly from?: PolicyVersion;
  /** What the trainer's bits depend on besides its inputs: equal ones promise equal bits. Absent where it does not tell. */
  readonly engine?: string;
  /** The optimizer's state at this version, where the plan asked for it. */
  readonly optimizer: ObjectRef | null;
  readonly outcomes: StepOutcomes;
  readonly metrics: Readonly<Record<string, number>>;
  readonly state: RunState;
  readonly committedAt: string;
}
