import { z } from 'zod';
import { evalMoments, regressionActions } from './eval-words.ts';
import { heartbeatTimeoutDefaultS } from '../core/limits.ts';
import { runNamePattern } from '../core/names.ts';
import { TinkerInferenceSpec, TinkerTrainerSpec } from './tinker-spec.ts';
import { PromptBranchSpec } from './prompt-branch-spec.ts';
import { args, SamplingSpec } from './sampling-spec.ts';
import { serverPool } from './server-pool-spec.ts';
import { TeacherSpec } from './teacher-spec.ts';
import { VllmSpec } from './vllm-spec.ts';
import { EnvironmentVariables, PoolSpec, PythonEnvironmentSpec, RolloutLimits } from './environment-spec.ts';

/**
 * A run, normalized: what every dialect is translated into. Everything has its value here, no defaults are left to
 * later readers. Keys keep the field's names in camel case. This file is the meaning of a run; dialects are spellings.
 */
const positive = z.int().positive();

/** Hex, of the file that an environment's id names, as it was when the config was read; missing where the id names none. */
const fileSha256 = z.string().optional();

export const EnvironmentSpec = z.strictObject({
  /** Of a built-in environment, the absolute path of a file of the user's, or with `python` the name of a package. */
  id: z.string().min(1),
  sha256: fileSha256,
  python: PythonEnvironmentSpec.optional(),
  variables: EnvironmentVariables.optional(),
  limits: RolloutLimits.optional(),
  /** Of verifiers v1: the agent that solves its tasks, such as its harness and its runtime. */
  agent: args.optional(),
  /** In place of the run's, whose temperature it has; missing = the run's. */
  sampling: SamplingSpec.optional(),
  /** Unique within the run; the id unless two entries share it. */
  name: z.string().min(1),
  args,
  /** Relative probability of drawing an example from this environment, > 0. */
  weight: z.number().positive(),
  /** null = all examples are drawn alike. */
  pools: PoolSpec.nullable().default(null),
});

/** Evaluations may be greedy: temperature 0. */
const EvalSamplingSpec = SamplingSpec.extend({ temperature: z.number().min(0) });

export const EvalSpec = z.strictObject({
  /** Steps between evaluations; the first is at step 0 unless skipped, the last after the last step. */
  interval: positive,
  skipFirstStep: z.boolean(),
  /** null = as the training rollouts. */
  sampling: EvalSamplingSpec.nullable().default(null),
  /** null = beside the training where servers hold several versions, else `pause`. */
  when: z.enum(evalMoments).nullable().default(null),
  onRegression: z.enum(regressionActions).default('flag'),
  environments: z.array(
    EnvironmentSpec.pick({
      id: true,
      sha256: true,
      python: true,
      variables: true,
      limits: true,
      agent: true,
      name: true,
      args: true,
    }).extend({
      /** −1 = all of them. */
      numExamples: z.int(),
      rolloutsPerExample: positive,
      /** Held-out examples that are left out at the start. */
      skipFirst: z.int().min(0).default(0),
      /** Of its own; null = as all of them. */
      interval: positive.nullable().default(null),
      sampling: EvalSamplingSpec.nullable().default(null),
    }),
  ),
});

/** A group is kept when its population variance of rewards is ≥ minRewardVariance and minReward ≤ mean ≤ maxReward. */
export const DifficultyFilterSpec = z.strictObject({
  minRewardVariance: z.number().min(0),
  minReward: z.number(),
  maxReward: z.number(),
  /** Drops groups whose rollouts are all right or all wrong (mean reward 1 or 0), as prime-rl's switch of that name. */
  onlineDifficultyFiltering: z.boolean(),
  /** Keeps groups whose rewards are all equal: what is trained does not ask for advantages. */
  keepsEqual: z.boolean().default(false),
  /** When sampling rounds keep too little: pause with a report, or first keep every group that has any variance. */
  onStarvation: z.enum(['pause', 'widen']).default('pause'),
});

/**
 * A filter that looks at single rollouts, in prime-rl's words. `enforce` takes the loss of what it flags away; without it
 * flagged rollouts are only counted.
 *
 *     gibberish       a token with an id > tokenIdThreshold and a logprob < −ln(vocabulary) − logprobOffset
 *     repetition      `window` sampled tokens in a row with a probability > probThreshold
 *     zero_advantage  an advantage of exactly 0
 *     low_reward      a reward < minReward (ours)
 */
export const RolloutFilterSpec = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('gibberish'),
    enforce: z.boolean(),
    tokenIdThreshold: z.int().min(0),
    logprobOffset: z.number().min(0),
  }),
  z.strictObject({
    type: z.literal('repetition'),
    enforce: z.boolean(),
    window: positive,
    probThreshold: z.number().min(0).max(1),
  }),
  z.strictObject({ type: z.literal('zero_advantage'), enforce: z.boolean() }),
  z.strictObject({ type: z.literal('low_reward'), enforce: z.boolean(), minReward: z.number() }),
]);

/** In each slot the first filter that matches flags a rollout. */
export const RolloutFiltersSpec = z.strictObject({
  /** Before a batch is filled: a group of which they leave nothing is dropped and another one takes its place. */
  pre: z.array(RolloutFilterSpec).default([]),
  /** Once the batch is full: it is trained with what they leave. */
  post: z.array(RolloutFilterSpec).default([]),
});

/** A chat template in place of the model's own: the SHA-256 of its text, which lies with the run and with its weights. */
export const ChatTemplateSpec = z.strictObject({
  /** The file it was read from, absolute; null = it stood in the config. Until it was read, what was written. */
  path: z.string().min(1).nullable(),
  /** Hex, of the text; null until it was read. */
  sha256: z.string().nullable(),
});

/** When the run pauses instead of training on what infrastructure left over. */
export const BreakerSpec = z.strictObject({
  /** Share of a step's rollouts that may fail through infrastructure; above it the run pauses. */
  maxFailedShare: z.number().min(0).max(1).default(0.5),
  /** Groups in a row, by ordinal, that may be lost to it. */
  maxFailedGroups: positive.default(10),
});

export const KlSpec = z.strictObject({
  /** Coefficient of the k3 estimate in the loss; 0 = reported only. */
  beta: z.number().min(0),
  /** When set, beta is doubled or halved as the step's KL leaves [target/1.5, 1.5·target]. */
  targetKl: z.number().positive().nullable(),
  /** Steps between renewals of the reference policy; null = it stays v0. */
  refSyncSteps: positive.nullable(),
});

export const CheckpointSpec = z.strictObject({
  interval: positive,
  /** How many of the newest are kept, ≥ 1. */
  keepLast: positive,
  /** Every multiple of this step is kept for good; null = none. */
  keepInterval: positive.nullable(),
});

export const OptimizerSpec = z.strictObject({
  beta1: z.number().min(0).lt(1),
  beta2: z.number().min(0).lt(1),
  epsilon: z.number().positive(),
  weightDecay: z.number().min(0),
  maxGradNorm: z.number().positive(),
});

export const ScheduleSpec = z.strictObject({
  type: z.enum(['constant', 'linear', 'cosine']),
  warmupSteps: z.int().min(0),
  /** Of linear: the rate stays at its peak until this many steps before the end; missing = it falls from the warm-up on. */
  decaySteps: positive.optional(),
  /** The linear and the cosine schedule fall to this fraction of the learning rate at the last step. */
  minRatio: z.number().min(0).max(1),
});

/** A file of the user's with code in it: its absolute path, and the SHA-256 it had when the config was read. */
export const CodeRef = z.strictObject({
  path: z.string().min(1),
  /** Hex; null until the file was read. What the file imports itself is not covered. */
  sha256: z.string().nullable(),
});

/** A trainer or an inference of the user's own: what its file exports by default, called with `options`. */
const ModuleSpec = z.strictObject({
  kind: z.literal('module'),
  import: CodeRef,
  options: z.record(z.string(), z.json()),
});

export const TrainerSpec = z.discriminatedUnion('kind', [
  z.strictObject({
    kind: z.literal('onnx'),
    /** Intra-op threads per session. 1 = the bits do not depend on the machine's load. */
    threads: positive,
    /** Where ONNX Runtime computes; cuda needs its libraries and a GPU. */
    provider: z.enum(['cpu', 'cuda']).default('cpu'),
    /** Which GPUs it sees; missing = all. */
    gpuIds: z.array(z.int().min(0)).optional(),
  }),
  TinkerTrainerSpec,
  ModuleSpec,
]);

export const InferenceSpec = z.discriminatedUnion('kind', [
  /** Ratchet's policy servers: many prompts in one request, each with a seed of its own. */
  z.strictObject({ kind: z.literal('embedded'), ...serverPool }),
  /** Any OpenAI-compatible servers that give token ids: a request for each turn. */
  z.strictObject({ kind: z.literal('openai'), ...serverPool }),
  /** vLLM: adopted (`url`), or started beside the workers. */
  z.strictObject({ kind: z.literal('vllm'), ...serverPool, vllm: VllmSpec }),
  TinkerInferenceSpec,
  ModuleSpec,
]);

/**
 * The policy loss. Per token, with ρ = exp(ℓ − μ), advantage A and sg = stop-gradient:
 *
 *     cispo                −sg(min(ρ, clipHigh)) · A · ℓ               (MiniMax-M1, 2025, eq. 4)
 *     grpo                 −min(ρ·A, clip(ρ, clipLow, clipHigh)·A)     (PPO, Schulman et al. 2017, eq. 7)
 *     importance_sampling  −ρ · A where maskLow ≤ ρ ≤ maskHigh, else 0 (verifiers' RLTrainer); the token still counts in
 *                          what the aggregation divides by
 *     dppo                 −ρ · A, none where π − μ > maskHigh at A > 0 or π − μ < −maskLow at A ≤ 0 (probabilities, not their
 *                          logs), + klTau · (ln ρ)² of every token (prime-rl's default since v0.5)
 *     ipo                  the same, none where π − μ lies outside −maskLow … maskHigh, whatever A is (prime-rl's "ipo")
 *     gspo                 −min(s·A, clip(s, clipLow, clipHigh)·A), where s = exp(mean over the row's tokens of ln ρ); its gradient
 *                          reaches each token through its own ρ: sg(s/ρ)·ρ (Zheng et al. 2025, Group Sequence Policy
 *                          Optimization, eq. 5–7 and, for advantages of tokens, 13–14)
 *     dro                  −A · ℓ + klTau · (ln ρ)²                    (Richemond et al. 2024; Tinker's "dro", klTau = β / 2)
 *     cross_entropy        −ℓ, whatever A is and whoever sampled: supervised, at temperature 1
 *     custom               what the imported function gives
 *
 * What stands for A is advantageTau · A + teacherTau · sg(log π_T − ℓ), with a teacher's log probabilities π_T (prime-rl's
 * adv_tau and teacher_tau). With 0 and 1 it is on-policy distillation, and ipo with its lower bound alone is then the loss of
 * prime-rl's "opd".
 */
export const LossSpec = z.strictObject({
  type: z.enum(['cispo', 'grpo', 'importance_sampling', 'dppo', 'ipo', 'gspo', 'dro', 'cross_entropy', 'custom']),
  /** Lower bound of the ratio, ρ in grpo (1 − ε_low) and s in gspo; cispo has none. */
  clipLow: z.number().min(0).default(0),
  /** Upper bound of the ratio: 1 + ε_high in grpo and gspo. */
  clipHigh: z.number().positive(),
  /**
   * Of importance_sampling: a token whose ratio ρ lies outside carries no loss. 0 and null = no bound. Of dppo and ipo: how far a
   * token's probability may move down, and up; null = as far as it likes.
   */
  maskLow: z.number().min(0).default(0),
  maskHigh: z.number().positive().nullable().default(null),
  /** Of dppo, ipo and dro, whose β it is half of. */
  klTau: z.number().min(0).default(0),
  /** Of the reward's advantage, and of the teacher's lead over the policy. */
  advantageTau: z.number().min(0).default(1),
  teacherTau: z.number().min(0).default(0),
  /**
   * token = Σ over the batch / Σ mask; sequence = mean over rollouts of (Σ / Σ mask of the rollout);
   * dr_grpo = Σ / (rollouts · maxTokens) (Liu et al. 2025, Understanding R1-Zero-like training).
   */
  aggregation: z.enum(['token', 'sequence', 'dr_grpo']),
  /** What dr_grpo divides by: the sampling's maxTokens unless the config names another. */
  maxTokens: positive.nullable().default(null),
  /** Of a custom loss; null otherwise. */
  import: CodeRef.nullable().default(null),
});

/** Low-rank adapters on frozen weights (Hu et al. 2021, LoRA): W x + (alpha / r) · B A x, as PEFT has it. */
export const LoraSpec = z.strictObject({
  r: positive,
  alpha: z.number().positive(),
  /** Probability of dropping an input of A while training. */
  dropout: z.number().min(0).lt(1),
  /** Last parts of module names: `q_proj`, `down_proj`, … */
  targetModules: z.array(z.string().min(1)).min(1),
});

/**
 * What each rollout of a group gets. centered subtracts the group's mean reward; std_normalized also divides by
 * the sample's standard deviation + 1e-4; an import is a function (rewards, group) → advantages.
 */
export const AdvantageSpec = z.union([z.enum(['centered', 'std_normalized']), z.strictObject({ import: CodeRef })]);

/** A file of the user's with rows to learn from: its absolute path, and the SHA-256 of its rows as the run stores them. */
export const DataRef = z.strictObject({
  path: z.string().min(1),
  /** Hex; null until the file was read. */
  sha256: z.string().nullable(),
});

/** Supervised training before step 1: on rows of the user's, or on the environments' own demonstrations. */
export const SftSpec = z.strictObject({
  /** Rows of JSON, each a conversation; null = the environments' demonstrations. */
  data: DataRef.nullable().default(null),
  steps: positive,
  batchSize: positive,
  learningRate: z.number().positive(),
  warmupSteps: z.int().min(0),
  /** The linear schedule's last fraction. */
  minRatio: z.number().min(0).max(1),
});

/** Weights & Biases, fed from the run's metrics. The key is in the environment of the process that feeds it, never here. */
export const WandbSpec = z.strictObject({
  /** null = `ratchet`. */
  project: z.string().nullable(),
  /** null = the run's name. */
  name: z.string().nullable(),
  /** Whose project; null = the key's own. */
  entity: z.string().nullable(),
  group: z.string().nullable().default(null),
  tags: z.array(z.string()).default([]),
  /** null = online where there is a key, else offline: files beside the run. */
  mode: z.enum(['online', 'offline', 'disabled']).nullable().default(null),
});

export const RunSpec = z.strictObject({
  schemaVersion: z.literal(1),
  name: z.string().regex(runNamePattern),
  /** A folder of Hugging Face files (absolute path), a preset of ours (`preset:NAME`), or the Hub's name of a model that is not here. */
  model: z.string().min(1),
  seed: z.int().min(0),
  /** Optimizer steps; 0 = supervised only: the run ends with v0. */
  maxSteps: z.int().min(0),
  /** Rollouts per optimizer step; a multiple of rolloutsPerExample. */
  batchSize: positive,
  /** At least 2 where rollouts are compared: where their rewards' advantages are trained on. */
  rolloutsPerExample: positive,
  learningRate: z.number().positive(),
  schedule: ScheduleSpec,
  optimizer: OptimizerSpec,
  loss: LossSpec,
  advantage: AdvantageSpec,
  /** Optimizer steps per batch, all with the behaviour logprobs of its sampling (TRL's num_iterations). */
  numIterations: positive.default(1),
  /** Rows computed at once; null = as many as suit the engine. Bounds memory; changes the gradient by rounding only. */
  microBatchSize: positive.nullable().default(null),
  /** null = all weights are trained. The warm-up always trains all of them: what it ends with is the adapters' base. */
  lora: LoraSpec.nullable().default(null),
  sampling: SamplingSpec,
  /** null = the model's own. */
  chatTemplate: ChatTemplateSpec.nullable().default(null),
  /** A first prompt that is longer is not sampled: its rollout is an `overlong_prompt`. null = what the server takes. */
  maxPromptTokens: positive.nullable().default(null),
  /**
   * interleaved: turns that extend each other's tokens exactly are one row, a broken prefix begins another; branching: each
   * turn is a row. The same tokens are trained either way; branching computes shared beginnings once for every turn.
   */
  trajectoryStrategy: z.enum(['interleaved', 'branching']).default('interleaved'),
  /** Rollouts that were cut (a turn at its limit, a row at seqLen) carry no loss; they count in their group's baseline. */
  maskTruncated: z.boolean().default(false),
  /** Rollouts that were cut have the reward 0, whatever their rubric gave. */
  zeroTruncated: z.boolean().default(false),
  /** Tokens of the longest row that is trained; null = any. */
  seqLen: positive.nullable().default(null),
  /** A longer row: its first seqLen tokens are trained, or none of its rollout (mask), or none of the row (drop). Counted. */
  overlongRows: z.enum(['truncate', 'mask', 'drop']).default('truncate'),
  rolloutFilters: RolloutFiltersSpec.prefault({}),
  /** None only where there is no step to collect rollouts for. */
  environments: z.array(EnvironmentSpec),
  eval: EvalSpec.nullable(),
  /** Who the policy learns from beside its rewards, or in their place; null = from its rewards alone. */
  teacher: TeacherSpec.nullable().default(null),
  /** Missing = nothing branches off. */
  gepa: PromptBranchSpec.optional(),
  filter: DifficultyFilterSpec,
  kl: KlSpec,
  /** 0 = on-policy; 1 = groups for step n+1 are generated while step n trains. */
  maxAsyncLevel: z.int().min(0).max(1),
  /** A group older than this many versions when its step trains is dropped as stale. */
  maxOffPolicySteps: z.int().min(0),
  /** Groups leased per sampling round = groups still needed × this, rounded up; bounds what is in flight. */
  oversamplingFactor: z.number().min(1),
  /** Training rollouts that are played at once; null = as many as workers take. */
  maxConcurrent: positive.nullable().default(null),
  /** Examples of training that may be begun in a minute; null = as they come. */
  tasksPerMinute: positive.nullable().default(null),
  /** Seconds of work on a sampling round's rollouts before what is unfinished is leased again. */
  generationTimeoutS: positive.default(600),
  /** A worker that has not been heard of for this long is taken to be dead. */
  heartbeatTimeoutS: z.number().min(2).default(heartbeatTimeoutDefaultS),
  breaker: BreakerSpec.prefault({}),
  checkpoints: CheckpointSpec,
  wandb: WandbSpec.nullable(),
  sft: SftSpec.nullable(),
  trainer: TrainerSpec,
  inference: InferenceSpec,
  /** Where the run folders lie: `file:` URI of a folder, or `s3://bucket/prefix/?endpoint=…&region=…&path_style=true&sse=…&kms_key_id=…`. */
  store: z.strictObject({ uri: z.string().min(1) }),
  /** What the config asks for and no part of Ratchet does yet, by path in our own words: `tasks_per_minute`, `env[0].version`. */
  later: args.default({}),
});

export type RunSpec = z.infer<typeof RunSpec>;
export type PoolSpec = z.infer<typeof PoolSpec>;
export type PythonEnvironmentSpec = z.infer<typeof PythonEnvironmentSpec>;
export type EnvironmentSpec = z.infer<typeof EnvironmentSpec>;
export { type JsonValue, SamplingSpec } from './sampling-spec.ts';
export type { EndpointsRef } from './server-pool-spec.ts';
export type { TeacherSpec } from './teacher-spec.ts';
export type { PromptBranchSpec } from './prompt-branch-spec.ts';
export type EvalSpec = z.infer<typeof EvalSpec>;
export type DifficultyFilterSpec = z.infer<typeof DifficultyFilterSpec>;
export type RolloutFilterSpec = z.infer<typeof RolloutFilterSpec>;
export type ChatTemplateSpec = z.infer<typeof ChatTemplateSpec>;
export type BreakerSpec = z.infer<typeof BreakerSpec>;
export type KlSpec = z.infer<typeof KlSpec>;
export type CheckpointSpec = z.infer<typeof CheckpointSpec>;
export type OptimizerSpec = z.infer<typeof OptimizerSpec>;
export type ScheduleSpec = z.infer<typeof ScheduleSpec>;
export type { TinkerInferenceSpec, TinkerTrainerSpec } from './tinker-spec.ts';
export type TrainerSpec = z.infer<typeof TrainerSpec>;
export type InferenceSpec = z.infer<typeof InferenceSpec>;
export type LossSpec = z.infer<typeof LossSpec>;
/** A LossSpec whose fields with a default may be left out. */
export type LossSettings = z.input<typeof LossSpec>;
export type ModuleSpec = z.infer<typeof ModuleSpec>;
export type CodeRef = z.infer<typeof CodeRef>;
export type LoraSpec = z.infer<typeof LoraSpec>;
export type AdvantageSpec = z.infer<typeof AdvantageSpec>;
export type WandbSpec = z.infer<typeof WandbSpec>;
export type DataRef = z.infer<typeof DataRef>;
export type SftSpec = z.infer<typeof SftSpec>;
