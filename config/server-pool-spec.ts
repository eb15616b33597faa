import { z } from 'zod';
import { inferenceConcurrencyDefault, inferenceTimeoutDefaultS } from '../core/limits.ts';

/** An alias of an `endpoints.toml`, whose servers are asked. The file is read again when it changes. */
export const EndpointsRef = z.strictObject({
  /** Absolute. */
  path: z.string().min(1),
  id: z.string().min(1),
});
export type EndpointsRef = z.infer<typeof EndpointsRef>;

/** Servers that are asked for turns; one is a pool of one. */
export const serverPool = {
  /** Base URLs of servers that run already; null = the policy server that `ratchet dev` started. */
  url: z.union([z.url(), z.array(z.url()).min(1)]).nullable(),
  /** In place of `url`. */
  endpoints: EndpointsRef.nullable().default(null),
  /** Name of the environment variable with the key; null = they ask for none. */
  apiKeyVar: z.string().nullable().default(null),
  headers: z.record(z.string(), z.string()).default({}),
  /** Header → name of the environment variable with its value. */
  headersFromEnv: z.record(z.string(), z.string()).default({}),
  /** Of one request, seconds. */
  timeoutS: z.number().positive().default(inferenceTimeoutDefaultS),
  /** Prompts in flight at one server. */
  maxConcurrent: z.int().positive().default(inferenceConcurrencyDefault),
  /** Where Ratchet's policy server computes. */
  provider: z.enum(['cpu', 'cuda']).default('cpu'),
  /**
   * How far a server's logprobs of the canary may lie from the trainer's, mean |Δ|; missing = 0.001 where both compute in float32,
   * else 0.05.
   */
  canaryThreshold: z.number().positive().optional(),
};
