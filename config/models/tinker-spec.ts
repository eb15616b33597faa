import { z } from 'zod';
import type { LossSettings } from '../../core/settings/learning.ts';

/**
 * A server of the Tinker API. `tinker` is the hosted service, which speaks protobuf, sums its losses and samples from any
 * checkpoint; `skyrl` is a server of one's own: what it does is measured (backends/tinker/measure.ts).
 */
const tinkerServer = {
  /** Before `/api/v1`. */
  url: z.url(),
  /** Name of the environment variable with the key; null = no key is needed. */
  apiKeyVar: z.string().nullable(),
  server: z.enum(['tinker', 'skyrl']),
};

export const TinkerTrainerSpec = z.strictObject({
  kind: z.literal('tinker'),
  ...tinkerServer,
  /** The server's name for the model; null = its only one. */
  baseModel: z.string().min(1).nullable(),
  /** The server's reduction of token losses, before any rescaling; null = as measured. */
  reduction: z.enum(['sum', 'row_mean', 'token_mean', 'sequence_mean']).nullable(),
  /** Folder of the server's checkpoints on this machine; missing = the server sends weights itself. */
  checkpointDir: z.string().min(1).optional(),
  /** Seconds after which the server may delete a checkpoint; null = it keeps them. */
  checkpointTtlS: z.int().positive().nullable(),
});
export type TinkerTrainerSpec = z.infer<typeof TinkerTrainerSpec>;

export const TinkerInferenceSpec = z.strictObject({
  kind: z.literal('tinker'),
  ...tinkerServer,
  /** Timeout of one turn in seconds. */
  timeoutS: z.number().positive(),
  /** Bound on turns in flight. */
  maxConcurrent: z.int().positive(),
});
export type TinkerInferenceSpec = z.infer<typeof TinkerInferenceSpec>;

/** Default address of the hosted service (the Python package's default). */
export const hostedTinkerUrl = 'https://tinker.thinkingmachines.dev/services/tinker-prod';
export const hostedTinkerKey = 'TINKER_API_KEY';

/**
 * Whether such servers compute a loss themselves. Other losses are computed here from the server's log probabilities,
 * and their gradient is sent back: one more forward pass.
 */
export function isTinkerLoss(
  { type, maskLow = 0, maskHigh = null, teacherTau = 0 }: LossSettings,
  klBeta: number,
): boolean {
  if (klBeta > 0 || teacherTau > 0) return false;
  if (type === 'importance_sampling') return maskLow === 0 && maskHigh === null;
  return type === 'cispo' || type === 'grpo' || type === 'cross_entropy';
}
