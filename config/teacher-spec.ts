import { z } from 'zod';
import { inferenceConcurrencyDefault, inferenceTimeoutDefaultS } from '../core/limits.ts';
import { SamplingSpec } from './sampling-spec.ts';
import { EndpointsRef } from './server-pool-spec.ts';

/** A stronger model that the policy learns from. */
export const TeacherSpec = z.strictObject({
  /**
   * samples: it plays the rollouts, and the policy learns to say what it said (cross_entropy).
   * scores: the policy plays them, and the teacher says how likely it would have found each token (LossSpec.teacherTau).
   */
  role: z.enum(['samples', 'scores']),
  /** Absolute path of a folder of weights, which the run's policy servers hold beside the policy's; null = it has servers. */
  folder: z.string().min(1).nullable(),
  /** What its servers call it; null = as the alias says, or it is a folder. */
  model: z.string().min(1).nullable(),
  /** Base URLs of its servers. */
  urls: z.array(z.url()),
  /** In place of `urls`. */
  endpoints: EndpointsRef.nullable(),
  /** Name of the environment variable with their key; null = they ask for none. */
  apiKeyVar: z.string().nullable(),
  headers: z.record(z.string(), z.string()),
  /** Of one request, seconds. */
  timeoutS: z.number().positive().default(inferenceTimeoutDefaultS),
  /** Prompts in flight at one server. */
  maxConcurrent: z.int().positive().default(inferenceConcurrencyDefault),
  /** How it is sampled; where it only scores, nothing is. */
  sampling: SamplingSpec,
});
export type TeacherSpec = z.infer<typeof TeacherSpec>;
