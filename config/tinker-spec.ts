import { z } from 'zod';
import type { LossSettings } from './run-spec.ts';

/**
 * A server of the Tinker API. `tinker` is the hosted service, which speaks protobuf, sums its losses and samples from any
 * checkpoint; `skyrl` is SkyRL, which speaks JSON, takes the mean per sequence, and samples from the models it has loaded.
 */
export const tinkerServer = {
  /** Before `/api/v1`. */
  url: z.url(),
  /** Name of the environment variable with the key; null = it asks for none. */
  apiKeyVar: z.string().nullable(),
  server: z.enum(['tinker', 'skyrl']),
};

export const TinkerTrainerSpec = z.strictObject({
  kind: z.literal('tinker'),
  ...tinkerServer,
  /** What the server calls the model; null = the only one it has. */
  baseModel: z.string().min(1).nullable(),
  /** What the server makes of the losses of tokens, before anything is rescaled. */
  reduction: z.enum(['sum', 'sequence_mean']),
  /** Seconds after which the server may delete a checkpoint; null = it keeps them. */
  checkpointTtlS: z.int().positive().nullable(),
});
export type TinkerTrainerSpec = z.infer<typeof TinkerTrainerSpec>;

export const TinkerInferenceSpec = z.strictObject({
  kind: z.literal('tinker'),
  ...tinkerServer,
  /** Of one turn, seconds. */
  timeoutS: z.number().positive(),
  /** Turns in flight. */
  maxConcurrent: z.int().positive(),
});
export type TinkerInferenceSpec = z.infer<typeof TinkerInferenceSpec>;

/** Where the hosted service is, unless told otherwise (the Python package's default). */
export const hostedTinkerUrl = 'https://tinker.thinkingmachines.dev/services/tinker-prod';
export const hostedTinkerKey = 'TINKER_API_KEY';
/** Of every adapter on such a server: adapters are scaled by this / rank, and nothing can change it. */
export const tinkerLoraAlpha = 32;

/**
 * Whether such servers compute a loss themselves. Others are computed here from log probabilities that the server gives, and it takes
 * their gradient in those: a forward pass more.
 */
export function isTinkerLoss(
  { type, maskLow = 0, maskHigh = null, teacherTau = 0 }: LossSettings,
  klBeta: number,
): boolean {
  if (klBeta > 0 || teacherTau > 0) return false;
  if (type === 'importance_sampling') return maskLow === 0 && maskHigh === null;
  return type === 'cispo' || type === 'grpo' || type === 'cross_entropy';
}

/** Environment variables with the keys of a run's trainer, by name. */
export function trainerKeys(trainer: { readonly kind: string; readonly apiKeyVar?: string | null }): string[] {
  return trainer.kind === 'tinker' && trainer.apiKeyVar != null ? [trainer.apiKeyVar] : [];
}
