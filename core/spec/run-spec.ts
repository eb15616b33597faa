import { z } from 'zod';
import { runNamePattern } from '../names.ts';

/**
 * A run, normalized: what every dialect is translated into. Everything has its value here, no defaults are left to
 * later readers. Keys keep the field's names in camel case. This file is the meaning of a run; dialects are spellings.
 */
const positive = z.int().positive();
const jsonValue: z.ZodType<JsonValue> = z.json();
export type JsonValue = string | number | boolean | null | JsonValue[] | { [key: string]: JsonValue };

const args = z.record(z.string(), jsonValue);

export const EnvironmentSpec = z.strictObject({
  id: z.string().min(1),
  /** Unique within the run; the id unless two entries share it. */
  name: z.string().min(1),
  args,
  /** Relative probability of drawing an example from this environment, > 0. */
  weight: z.number().positive(),
});

export const SamplingSpec = z.strictObject({
  /** Per turn. */
  maxTokens: positive,
  temperature: z.number().positive(),
});

export const EvalSpec = z.strictObject({
  /** Steps between evaluations; the first is at step 0 unless skipped, the last after the last step. */
  interval: positive,
  skipFirstStep: z.boolean(),
  environments: z.array(
    z.strictObject({
      id: z.string().min(1),
      name: z.string().min(1),
      args,
      /** −1 = all of them. */
      numExamples: z.int(),
      rolloutsPerExample: positive,
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
  type: z.enum(['constant', 'linear']),
  warmupSteps: z.int().min(0),
  /** The linear schedule falls to this fraction of the learning rate at the last step. */
  minRatio: z.number().min(0).max(1),
});

export const TrainerSpec = z.discriminatedUnion('kind', [
  z.strictObject({
    kind: z.literal('onnx'),
    /** Intra-op threads per session. 1 = the bits do not depend on the machine's load. */
    threads: positive,
  }),
]);

export const InferenceSpec = z.discriminatedUnion('kind', [
  z.strictObject({
    kind: z.literal('embedded'),
    /** Base URL of a running policy server; null = the one `ratchet dev` started. */
    url: z.url().nullable(),
  }),
]);

export const LossSpec = z.strictObject({
  type: z.enum(['cispo']),
  /** Upper clip of the importance ratio in CISPO; there is no lower clip. */
  clipHigh: z.number().positive(),
  /** token = Σ over the batch / Σ mask. */
  aggregation: z.enum(['token']),
});

/** Supervised warm-up before step 1, on the environment's own demonstrations. */
export const SftSpec = z.strictObject({
  steps: positive,
  batchSize: positive,
  learningRate: z.number().positive(),
  warmupSteps: z.int().min(0),
  /** The linear schedule's last fraction. */
  minRatio: z.number().min(0).max(1),
});

export const RunSpec = z.strictObject({
  schemaVersion: z.literal(1),
  name: z.string().regex(runNamePattern),
  /** A folder of Hugging Face files (absolute path), or a preset of ours: `preset:NAME`. */
  model: z.string().min(1),
  seed: z.int().min(0),
  maxSteps: positive,
  /** Rollouts per optimizer step; a multiple of rolloutsPerExample. */
  batchSize: positive,
  rolloutsPerExample: z.int().min(2),
  learningRate: z.number().positive(),
  schedule: ScheduleSpec,
  optimizer: OptimizerSpec,
  loss: LossSpec,
  /** std_normalized divides the centred reward by the group's population standard deviation + 1e-4. */
  advantage: z.enum(['centered', 'std_normalized']),
  sampling: SamplingSpec,
  environments: z.array(EnvironmentSpec).min(1),
  eval: EvalSpec.nullable(),
  filter: DifficultyFilterSpec,
  kl: KlSpec,
  /** 0 = on-policy; 1 = groups for step n+1 are generated while step n trains. */
  maxAsyncLevel: z.int().min(0).max(1),
  /** A group older than this many versions when its step trains is dropped as stale. */
  maxOffPolicySteps: z.int().min(0),
  /** Groups leased per sampling round = groups still needed × this, rounded up; bounds what is in flight. */
  oversamplingFactor: z.number().min(1),
  checkpoints: CheckpointSpec,
  wandb: z
    .strictObject({ project: z.string().nullable(), name: z.string().nullable(), entity: z.string().nullable() })
    .nullable(),
  sft: SftSpec.nullable(),
  trainer: TrainerSpec,
  inference: InferenceSpec,
  /** `file:` URI of the folder that holds the run folders. */
  store: z.strictObject({ uri: z.string().min(1) }),
});

export type RunSpec = z.infer<typeof RunSpec>;
export type EnvironmentSpec = z.infer<typeof EnvironmentSpec>;
export type SamplingSpec = z.infer<typeof SamplingSpec>;
export type EvalSpec = z.infer<typeof EvalSpec>;
export type DifficultyFilterSpec = z.infer<typeof DifficultyFilterSpec>;
export type KlSpec = z.infer<typeof KlSpec>;
export type CheckpointSpec = z.infer<typeof CheckpointSpec>;
export type OptimizerSpec = z.infer<typeof OptimizerSpec>;
export type ScheduleSpec = z.infer<typeof ScheduleSpec>;
export type TrainerSpec = z.infer<typeof TrainerSpec>;
export type InferenceSpec = z.infer<typeof InferenceSpec>;
export type LossSpec = z.infer<typeof LossSpec>;
export type SftSpec = z.infer<typeof SftSpec>;
