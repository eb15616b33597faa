import { z } from 'zod';
import { ModelAccessSpec } from './model-access-spec.ts';

/** A file of `ratchet eval run`, normalized: globals laid under each evaluation, ablations written out. Evaluations inside a run are `EvalSpec` in run-spec.ts. */
const free = z.record(z.string(), z.json());

export const EvaluatedEnvironmentSpec = z.strictObject({
  /** As written: an environment's id. */
  id: z.string().min(1),
  /** Unique within the file; the id's last part unless several entries share it. */
  name: z.string().min(1),
  args: free,
  /** For the environment's constructor, beside the arguments of its loader. */
  extraKwargs: free,
  /** Names of environment variables that it sees beside the usual ones. */
  variables: z.array(z.string()).default([]),
  /** Where environments of the project lie. From the working folder unless absolute. */
  folder: z.string().min(1),
  /** Settings of a verifiers v1 environment. */
  taskset: free.nullable(),
  harness: free.nullable(),
});

export const EvaluationSpec = z.strictObject({
  environment: EvaluatedEnvironmentSpec,
  model: ModelAccessSpec,
  /** Request fields as verifiers sends them: `max_tokens` (per turn), `temperature`, `extra_body`, … */
  sampling: free,
  /** −1 = all; null = what the environment's package says (`[tool.verifiers.eval]`), else 5. */
  numExamples: z.int().nullable(),
  /** null = what the environment's package says, else 3. */
  rolloutsPerExample: z.int().positive().nullable(),
  shuffle: z.boolean(),
  shuffleSeed: z.int().min(0),
  /** Rollouts at once; −1 = no bound. */
  maxConcurrent: z.int(),
  /** Each rollout is scored by itself, not with its group. */
  independentScoring: z.boolean(),
  maxRetries: z.int().min(0),
  /** null = one for every 256 rollouts at once. */
  numWorkers: z.int().positive().nullable(),
  /** Seconds of a rollout. */
  timeoutS: z.number().positive().nullable(),
  outputDir: z.string().nullable(),
  stateColumns: z.array(z.string()),
  savesResults: z.boolean(),
  /** Goes on with an earlier evaluation: "newest" = the newest unfinished one that matches, else its folder. */
  resume: z.union([z.literal('newest'), z.strictObject({ path: z.string().min(1) })]).nullable(),
  /** Also uploaded to the Hugging Face Hub; the name null = made from the environment and the model. */
  hub: z.strictObject({ dataset: z.string().nullable() }).nullable(),
});

export const EvalRunSpec = z.strictObject({
  schemaVersion: z.literal(1),
  evaluations: z.array(EvaluationSpec).min(1),
});

export type EvaluationSpec = z.infer<typeof EvaluationSpec>;
export type EvalRunSpec = z.infer<typeof EvalRunSpec>;

/** What an evaluation has where neither it nor its environment's package says so. */
export const evaluationDefaults = { numExamples: 5, rolloutsPerExample: 3, maxConcurrent: 32, maxRetries: 3 } as const;
