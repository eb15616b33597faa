import { z } from 'zod';

/** Parts of what a run says of each of its environments (run-spec.ts). */

/**
 * Difficulty pools of an environment: a mean reward of a group ≥ easyThreshold makes its example easy, else one ≤
 * hardThreshold makes it hard. A fraction says how often examples of a pool are drawn, where normal ones are drawn once
 * per epoch; 0 = never again.
 */
export const PoolSpec = z.strictObject({
  easyThreshold: z.number().nullable(),
  hardThreshold: z.number().nullable(),
  easyFraction: z.number().min(0).max(1),
  hardFraction: z.number().min(0).max(1),
});

/** A package of verifiers: what an environment's id was resolved to when the config was read. */
export const PythonEnvironmentSpec = z.strictObject({
  /** What is imported: the id with underscores. */
  module: z.string().min(1),
  /** `v0` has load_environment (verifiers 0.3), `v1` a Taskset (0.4 and newer). */
  api: z.enum(['v0', 'v1']),
  /** Absolute, of the virtual environment; its interpreter is `bin/python` in it. */
  folder: z.string().min(1),
  /** Versions that are installed there: of verifiers, of the package. */
  verifiers: z.string().min(1),
  version: z.string().min(1),
  /** Absolute, of a local package, which is installed editable: its files are imported from there. */
  source: z.string().optional(),
  /** Hex, of `source`'s files as they were when the config was read (`folderDigest`). */
  sha256: z.string().optional(),
});

/**
 * Variables of the environment of a worker's process that an environment sees beside the usual ones: keys of judges and tools.
 * Their names alone are here, never their values. Missing = no others.
 */
export const EnvironmentVariables = z.strictObject({
  /** Each has to be set where its rollouts are played, there or in one of `files`. */
  names: z.array(z.string().min(1)).default([]),
  /** Absolute paths of files with lines `NAME=value`, all of which a Python environment sees; there on every machine with workers. */
  files: z.array(z.string().min(1)).default([]),
});
export type EnvironmentVariables = z.infer<typeof EnvironmentVariables>;

/** How far a rollout of an environment may go. null = no bound but the environment's own. */
export const RolloutLimits = z.strictObject({
  /** Turns of the policy: after the last one the rollout ends and is scored with what it has. */
  maxTurns: z.int().positive().nullable().default(null),
  /**
   * Tokens, looked at between turns, so that the turn that reaches one is still whole: what the environment fed in, what the policy
   * said, and both. What several turns share counts once.
   */
  maxInputTokens: z.int().positive().nullable().default(null),
  maxOutputTokens: z.int().positive().nullable().default(null),
  maxTotalTokens: z.int().positive().nullable().default(null),
  /** Seconds of playing it; one that takes longer ends as `timeout`, without a reward. */
  timeoutS: z.number().positive().nullable().default(null),
  /** How often one that its environment spoiled is played again, each time in a fresh environment; null = twice. */
  maxRetries: z.int().min(0).nullable().default(null),
});
export type RolloutLimits = z.infer<typeof RolloutLimits>;
